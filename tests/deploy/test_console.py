"""The console starts with the options of the compose and Kubernetes files, without a gateway."""

import json
import re
import socket
import ssl
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.console import console
from support.yaml_files import read_yaml

from firstline.console.access import HEALTH
from firstline.console.connections import HANDSHAKES
from firstline_gateway.identity import ca

CHECKOUT = Path(__file__).parents[2]
PASSWORD = "correct horse battery"
COMPOSE: dict[str, Any] = read_yaml(CHECKOUT / "docker-compose.yml")["services"]["console"]
POD: dict[str, Any] = read_yaml(CHECKOUT / "cloud_gateway/console/kubernetes/deployment.yaml")["spec"]


@pytest.mark.parametrize(
    ("options", "plain"),
    [(COMPOSE["command"], True), (POD["template"]["spec"]["containers"][0]["args"], False)],
    ids=["compose", "kubernetes"],
)
def test_the_console_starts_with_each_deployment_option(options: list[str], plain: bool, tmp_path: Path) -> None:
    authority = ca.create_authority(ca.new_key(), time.time())
    certificate, key = ca.issue_server(authority, ("127.0.0.1",), time.time())
    trusted = ca.pem_of(authority.certificate)
    contents = {
        "tls.crt": ca.pem_of(certificate),
        "tls.key": ca.key_pem(key).decode(),
        **dict.fromkeys(("password", "console_password"), PASSWORD + "\n"),
        **dict.fromkeys(("key", "console_key"), "flk_of_the_console\n"),
        **dict.fromkeys(("ca.crt", "gateway_ca"), trusted),
    }
    arguments = [re.sub(r"/run/secrets/(\w+/)?", f"{tmp_path}/", option) for option in options]
    for option in arguments:
        file = Path(option.partition("=")[2])
        if file.parent == tmp_path:
            file.write_text(contents[file.name])
    # Only what a container's own network and port are is otherwise here.
    here = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=8090": "--port=0"}
    assert here.keys() <= {*arguments}
    arguments = [here.get(option, option) for option in arguments]
    image = (CHECKOUT / COMPOSE["build"]["dockerfile"]).read_text()
    assert json.loads(image.partition("ENTRYPOINT ")[2]) == ["firstline", "console"]
    assert Path(sys.executable).with_name("firstline").is_file()

    believed = ssl.create_default_context(cadata=trusted)
    with (
        console("", "", tmp_path / "log", *arguments) as url,
        httpx.Client(base_url=url, verify=believed, timeout=30) as client,
    ):
        assert url.startswith("http://" if plain else "https://")
        assert client.get(HEALTH).text == "live\n"
        assert client.get("/").status_code == 401
        entered = client.post("/sign-in", data={"name": "anna", "password": PASSWORD}, headers={"origin": url})
        assert entered.status_code == 303 and "Firstline" in client.get(url).text
        assert client.get("/nothing").status_code == 404
    assert (tmp_path / "log").read_text() == ""


def test_the_console_ends_the_oldest_handshake(tmp_path: Path) -> None:
    certificate, key = ca.issue_server(ca.create_authority(ca.new_key(), time.time()), ("127.0.0.1",), time.time())
    (tmp_path / "tls.pem").write_text(ca.pem_of(certificate) + ca.key_pem(key).decode())
    tls = [f"--tls-{part}={tmp_path / 'tls.pem'}" for part in ("cert", "key")]
    with console("http://127.0.0.1:9", "key", tmp_path / "log", "--port=0", *tls) as url, ExitStack() as opened:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        oldest, *_ = [opened.enter_context(socket.create_connection(address)) for _ in range(HANDSHAKES + 1)]
        oldest.settimeout(30)  # half of the time that asyncio gives a handshake
        assert oldest.recv(1) == b""
