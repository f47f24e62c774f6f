"""`edge-agent join`: makes this device known to a gateway, and the gateway to this device."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import ConfigError
from firstline_core.protocol.enrolment import JoinToken, parse_join_token
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.wording import time_text
from firstline_edge.cli.output import print_progress, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.identity.time_floor import TimeFloor
from firstline_edge.settings.identity import IdentityDocument
from firstline_edge.settings.settings import EdgeSettings

_TOKEN_LIMIT_CHARS = 4096
_CONFIGURATION = Path("edge-agent.toml")
_ALREADY = "already joined"


def command(arguments: argparse.Namespace) -> int:
    """Joins once; a second call prints the identity."""
    if arguments.config is None and _CONFIGURATION.is_file():
        print_progress(f"{_CONFIGURATION} in this folder is not used; to use it: --config {_CONFIGURATION}")
    # A previous identity must not affect how the device joins.
    settings = load_settings(arguments, **{"agent.use_identity": False})
    url = _checked_url(arguments.url)
    text = _token_text(arguments.token_file)
    try:
        token = parse_join_token(text)
    except ConfigError as error:
        raise ConfigError(f"--token-file {arguments.token_file}: {error.message}") from error
    if arguments.proxy:
        from firstline_core.protocol.proxies import check_proxy  # its imports take time and memory

        check_proxy(arguments.proxy, "--proxy")
    files = IdentityFiles(settings.state_dir)
    identity = None if arguments.force else files.read()
    if identity is not None and _is_valid(identity, token, files):
        _show(arguments, _ALREADY, identity, settings)
        return OK
    if identity is not None and identity.authority != token.ca_hash.hex():
        raise ConfigError(
            f"This device joined {identity.gateway} as '{identity.device}', and the token is another gateway's; "
            "--force leaves the one for the other."
        )
    from firstline_edge.identity import enrolment  # `cryptography` takes time and memory to import

    joined = asyncio.run(enrolment.join_gateway(url, token, files, proxy=arguments.proxy))
    _show(arguments, "joined", joined, settings)
    return OK


def _is_valid(identity: IdentityDocument, token: JoinToken, files: IdentityFiles) -> bool:
    floor = TimeFloor(files.time, SYSTEM_CLOCK, least_s=identity.not_before_s, most_s=identity.authority_ends_s)
    return identity.authority == token.ca_hash.hex() and identity.not_after_s > floor.now_s()


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(
            f"'{url}' is not a gateway's URL; write https://HOST:PORT, with a port of 1 to 65535."
        ) from error
    if "@" in url:  # it is kept, and shown in logs; and a password does not belong on a command line
        raise ConfigError("The gateway's address names a user or a password; a device is known by its certificate.")
    if not has_host or parts.scheme != "https" or parts.query or parts.fragment or not url.isprintable():
        raise ConfigError(f"'{url}' is not the URL of a gateway with TLS; write https://HOST:PORT.")
    return url.rstrip("/")


def _token_text(file: str) -> str:
    """Returns the token from a file or stdin: every user of the machine can read the command line."""
    if file != "-":
        return read_secret(file, "--token-file", "the join token")
    return sys.stdin.read(_TOKEN_LIMIT_CHARS) if sys.stdin is not None else ""  # None: it is closed


def _show(arguments: argparse.Namespace, what: str, identity: IdentityDocument, settings: EdgeSettings) -> None:
    value = {
        "event": what.replace(" ", "_"),
        "device": identity.device,
        "gateway": identity.gateway,
        "broker": identity.broker and f"{identity.broker.host}:{identity.broker.port}",
        "not_after_s": identity.not_after_s,
        "authority": identity.authority,
        "folder": str(IdentityFiles(settings.state_dir).folder),
    }
    show(arguments, value, _lines(what, identity, settings))


def _lines(what: str, identity: IdentityDocument, settings: EdgeSettings) -> Iterator[str]:
    yield f"{what} {identity.gateway} as {identity.device}, certificate until {time_text(identity.not_after_s)}"
    yield f"the identity is stored in {IdentityFiles(settings.state_dir).folder}"
    configured = settings.agent.device_id
    if configured and configured != identity.device:
        now = f"the name is '{identity.device}' now"
        yield f"agent.device_id is '{configured}': take it out of the configuration, {now}"
    then = "start or restart the agent"
    used = [link for link in settings.links if link.shows_identity]
    if not settings.links:
        broker = f" and mqtt at {identity.broker.host}:{identity.broker.port}" if identity.broker is not None else ""
        yield f"links: https at {identity.gateway}{broker}; nothing needs to be configured, {then}"
    elif used:
        yield f"{len(used)} of {len(settings.links)} [[links]] show the certificate; {then}"
    else:
        yield f'no [[links]] section shows the certificate; put url = "{identity.gateway}" there without a token_file'
    if what == _ALREADY:
        yield "the identity stays, the token was not used; --force joins again, after a revocation"
