"""`firstline console` on the command line: refusals, and missing packages."""

import os
import socket
import subprocess

import httpx
import msgspec
import pytest
from support.console import without
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.console.accounts import Accounts
from firstline.console.settings import Settings
from firstline.fleet.client import Fleet, _name_person
from firstline_core.errors import ConfigError
from firstline_core.fleet.persons import PERSON_HEADER

GATEWAY = ("--gateway", "http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((*GATEWAY, "--host", "0.0.0.0"), {"FIRSTLINE_TOKEN": "key"}, "--password-file"),
        ((*GATEWAY, "--password-file", "/nowhere"), {"FIRSTLINE_TOKEN": "key"}, "/nowhere does not exist"),
        (
            (*GATEWAY, "--port", "0", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"),
            {"FIRSTLINE_TOKEN": "key"},
            "both in PEM",
        ),
        (
            (*GATEWAY, "--port", "0", "--host", "192.0.2.1", "--plain-http"),
            {"FIRSTLINE_TOKEN": "key", "FIRSTLINE_CONSOLE_PASSWORD": "x" * 12},
            "cannot listen on 192.0.2.1",
        ),
    ],
)
def test_invalid_options_are_explained(arguments: tuple[str, ...], environment: dict[str, str], message: str) -> None:
    clean = dict.fromkeys(("FIRSTLINE_GATEWAY", "FIRSTLINE_TOKEN", "FIRSTLINE_CONSOLE_PASSWORD"), "")
    refused = CliRunner().invoke(app, ["console", *arguments], env=clean | environment)
    assert refused.exit_code == 2 and message in refused.stderr, refused.output


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (b"", "has 0 characters"),
        (b"geheim\n", "has 6 characters"),
        (b"geheimgeheim\xff\n", "is not UTF-8 text; choose another"),
    ],
)
def test_a_password_that_nobody_could_use_has_no_hash(typed: bytes, message: str) -> None:
    refused = CliRunner().invoke(app, ["console", "--hash-password"], input=typed)
    assert refused.exit_code == 2 and message in refused.stderr and "geheim" not in refused.output


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")
@pytest.mark.parametrize(
    ("host", "clients"), [("::", ("127.0.0.1", "::1")), ("[::1]", ("::1",)), ("0.0.0.0", ("127.0.0.1",))]
)
def test_all_addresses_of_a_host_are_served(host: str, clients: tuple[str, ...]) -> None:
    from firstline.console.service import listening_socket  # only here, because it imports NiceGUI

    accounts = Accounts(shared="x" * 12)
    settings = Settings("http://127.0.0.1", "key", host=host, port=0, accounts=accounts, plain_http=True)
    with listening_socket(settings) as listening:
        for client in clients:
            socket.create_connection((client, listening.getsockname()[1]), timeout=5).close()


def test_missing_packages_are_named_in_the_error() -> None:
    command, environment = without({"nicegui"}, *GATEWAY, "--port", "0"), {**os.environ, "FIRSTLINE_TOKEN": "key"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2 and "pip install 'firstline[console]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("status", "code"), [(403, "forbidden"), (503, "unavailable"), (200, "")])
def test_key_that_may_not_delegate_is_refused_at_start(status: int, code: str) -> None:
    from firstline.console.service import check_key  # only here, because it imports NiceGUI

    requests: list[httpx.Request] = []

    def gateway(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        body = {"devices": [], "after": None} if status == 200 else {"error": "Use 'delegate'.", "code": code}
        return httpx.Response(status, json=body)

    with httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(gateway)) as client:
        client.event_hooks = {"request": [_name_person]}
        if status == 403:
            with pytest.raises(ConfigError, match="The console cannot use this key for sign-in: Use 'delegate'"):
                check_key(Fleet(client))
        else:
            check_key(Fleet(client))
    assert msgspec.json.decode(requests[0].headers[PERSON_HEADER])["role"] == "viewer"
