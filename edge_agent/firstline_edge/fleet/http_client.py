"""HTTP connections to the gateway for fleet documents and downloads, separate from those of inference requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx

from firstline_core.errors import ConfigError, LinkDownError, ProtocolError, RemoteTimeoutError
from firstline_core.fleet.profiles import ProfileEntry, own_profile_path
from firstline_core.fleet.twin import LIMIT_BYTES, read_document
from firstline_core.profile.profile import Profile, encode
from firstline_core.protocol.http import error_of_gateway
from firstline_core.protocol.http_client import HTTP_FAILURES, open_async_client, open_client
from firstline_edge.cloud.http_link import client_settings, tls_context, token_of
from firstline_edge.identity.credentials import Credentials
from firstline_edge.settings.settings import LinkSection

_TIMEOUT_S = 20.0
# A download continues as long as a byte arrives within this time.
_SILENCE_S = 30.0
_PART_BYTES = 16 * 1024
_CONNECTIONS, _IDLE_S = 4, 5.0


class FleetHttp:
    """Sends this device's fleet requests to one gateway.

    Args:
        section: the HTTP link whose address, token, authorities and proxy are used.
        credentials: of a device that has joined.

    Raises:
        ConfigError: authorities or a token cannot be read.
    """

    def __init__(self, section: LinkSection, credentials: Credentials | None) -> None:
        self._section = section
        self._credentials = credentials if section.shows_identity else None
        token_of(section)  # a token that cannot be read is an error of the settings; each request reads it again
        self._settings = client_settings(section, tls_context(section, credentials), _CONNECTIONS, idle_s=_IDLE_S)
        self._client = open_async_client(self._settings)

    def blocking_client(self) -> httpx.Client:
        """Returns a client for a thread that may block; the caller sets its time limits, and closes it.

        Raises:
            LinkDownError: the token cannot be read now.
        """
        client = open_client(self._settings)
        client.headers.update(self._authorization())
        return client

    def _authorization(self) -> dict[str, str]:
        """Returns the header with the token, which is read again for each request because the file may be replaced."""
        try:
            token = token_of(self._section)
        except ConfigError as error:
            raise LinkDownError(error.message) from error
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def exchange(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, content: bytes = b""
    ) -> tuple[int, httpx.Headers, bytes]:
        """Exchanges small documents; returns the status (below 400), headers and body.

        Raises:
            FirstlineError: no answer, or the gateway's error.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S), self.streaming(method, path, headers, content) as response:
                return response.status_code, response.headers, await self._body(response)
        except TimeoutError as error:
            raise RemoteTimeoutError(f"{self._section.url} did not answer within {_TIMEOUT_S:g} s.") from error

    async def _body(self, response: httpx.Response) -> bytes:
        body = b""
        async for part in response.aiter_raw():
            body += part
            if len(body) > LIMIT_BYTES:
                raise ProtocolError(f"{self._section.url} answers with more than {LIMIT_BYTES} bytes.")
        return body

    async def send(self, path: str, content: bytes) -> bytes:
        """Sends a document with PUT in parts, without a time limit for the whole document; returns the answer's body.

        Raises:
            FirstlineError: no answer, or the gateway's error.
        """

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(content), _PART_BYTES):
                yield content[start : start + _PART_BYTES]

        headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        async with self.streaming("PUT", path, headers, parts()) as response:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    return await self._body(response)
            except TimeoutError as error:
                raise RemoteTimeoutError(
                    f"{self._section.url} did not end its answer within {_TIMEOUT_S:g} s."
                ) from error

    @asynccontextmanager
    async def streaming(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] = b"",
    ) -> AsyncIterator[httpx.Response]:
        """Opens an answer whose body the caller reads.

        Raises:
            FirstlineError: see `exchange`; also while the body is read.
        """
        url = self._section.url
        own = {**self._authorization(), **(headers or {})}
        try:
            timeout = httpx.Timeout(_SILENCE_S, connect=_TIMEOUT_S)
            async with self._client.stream(method, path, headers=own, content=content, timeout=timeout) as response:
                if self._credentials is not None and "date" in response.headers:
                    self._credentials.observe_date(response.headers["date"])
                status = response.status_code
                if 300 <= status < 400 and status != httpx.codes.NOT_MODIFIED:  # a redirected report has not arrived
                    raise ProtocolError(
                        f"{url} answers with a redirect (HTTP status {status}), which is not followed; name the final "
                        "address as the link's url, unless a proxy between this device and the gateway wants a login."
                    )
                if status >= 400:
                    body = b""
                    async for part in response.aiter_raw():
                        body += part
                        if len(body) > LIMIT_BYTES:
                            break
                    raise error_of_gateway(status, body, response.headers)
                yield response
        except httpx.TimeoutException as error:
            raise RemoteTimeoutError(f"{url} went silent.") from error
        except (*HTTP_FAILURES, RuntimeError) as error:  # RuntimeError: no thread in which to look the name up
            raise LinkDownError(f"{url}: {str(error).rstrip('.') or type(error).__name__}.") from error

    async def close(self) -> None:
        await self._client.aclose()


def fleet_http(links: Sequence[LinkSection], credentials: Credentials | None) -> FleetHttp | None:
    """Returns the client of the first HTTP link; None if the device has MQTT links only.

    Raises:
        ConfigError: see `FleetHttp`.
    """
    section = next((link for link in links if link.kind == "http"), None)
    return FleetHttp(section, credentials) if section is not None else None


async def upload_profile(http: FleetHttp | None, profile: Profile) -> None:
    """Sends a profile of this device to the gateway.

    Raises:
        LinkDownError: this device has no HTTP link.
        FirstlineError: no answer, or the gateway's error.
    """
    if http is None:
        raise LinkDownError("Profiles go to the gateway over HTTP, and this device has no HTTP link.")
    answer = await http.send(own_profile_path(profile.bundle, profile.version), encode(profile))
    # The page of a captive portal is refused: the gateway has not received the profile.
    read_document(answer, ProfileEntry, "The answer to a profile")
