"""The fleet of a gateway over its REST API: devices are invited, listed and revoked."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from firstline import connection
from firstline_core.errors import ProtocolError
from firstline_core.protocol.enrolment import (
    DEVICES_PATH,
    DeviceList,
    DeviceState,
    Invitation,
    InviteAnswer,
    InviteRequest,
)
from firstline_core.protocol.http_errors import error_from

_TIMEOUT_S = 30.0
_AT_ONCE = 1000  # names in one request

_T = TypeVar("_T")


class Fleet:
    """One gateway's devices; see `open_fleet`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def invite(self, devices: Sequence[str], valid_s: float) -> list[Invitation]:
        """A join token for each device, in their order; the gateway shows them this once.

        Raises:
            ConfigError: a name that no device can have.
            FirstlineError: what the gateway said.
        """
        found: list[Invitation] = []
        for start in range(0, len(devices), _AT_ONCE):
            asked = InviteRequest(tuple(devices[start : start + _AT_ONCE]), valid_s)
            found += self._asked("POST", DEVICES_PATH, InviteAnswer, asked).invitations
        return found

    def devices(self) -> Iterator[DeviceState]:
        """All of them, by name.

        Raises:
            FirstlineError: what the gateway said.
        """
        after: str | None = ""
        while after is not None:
            page = self._asked("GET", f"{DEVICES_PATH}?after={quote(after, safe='')}", DeviceList)
            yield from page.devices
            after = page.after

    def revoke(self, device: str) -> None:
        """Refuses a device from now on.

        Raises:
            FirstlineError: what the gateway said.
        """
        self._asked("POST", f"{DEVICES_PATH}/{quote(device, safe='')}/revoke", dict)

    def _asked(self, method: str, path: str, kind: type[_T], body: object = None) -> _T:
        url = str(self._client.base_url).rstrip("/")
        content = None if body is None else msgspec.json.encode(body)
        try:
            response = self._client.request(method, path, content=content)
        except httpx.HTTPError as error:
            raise connection.link_error(error, url) from error
        if response.status_code != httpx.codes.OK:
            raise error_from(response.status_code, response.content, response.headers)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"{url} does not answer as a Firstline gateway: {error}.") from error


@contextmanager
def open_fleet(url: str, key: str, ca_file: Path | None = None) -> Iterator[Fleet]:
    """The fleet of the gateway at `url`.

    Args:
        url: with https, unless the gateway is on this machine.
        key: an API key with the scope "fleet".
        ca_file: whom to believe (PEM); None for the machine's own authorities.

    Raises:
        ConfigError: the URL, the key or the file is none.
    """
    with httpx.Client(
        base_url=connection.base_url(url),
        headers={**connection.authorization(key), "Content-Type": "application/json"},
        verify=ssl.create_default_context() if ca_file is None else connection.believing(ca_file),
        timeout=_TIMEOUT_S,
        trust_env=False,
    ) as client:
        yield Fleet(client)
