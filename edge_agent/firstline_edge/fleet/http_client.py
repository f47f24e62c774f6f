"""The fleet's own connections to the gateway. Requests of applications never wait behind a model's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from firstline_core.errors import ConfigError, LinkDownError, ProtocolError, RemoteTimeoutError
from firstline_core.fleet.twin import LIMIT_BYTES
from firstline_core.protocol.http_errors import error_from
from firstline_core.storage.secrets import read_secret
from firstline_edge.cloud.http_pool import USER_AGENT, HttpLinkSettings, tls_context
from firstline_edge.identity.credentials import Credentials
from firstline_edge.settings.settings import LinkSection

_TIMEOUT_S = 20.0
# Of silence: a byte in so many seconds keeps a download alive.
_SILENCE_S = 30.0
_PART_BYTES = 16 * 1024


class FleetHttp:
    """Asks one gateway, as the device that this is.

    Args:
        section: the http link whose address, token, authorities and proxy are used.
        credentials: of a device that has joined.

    Raises:
        ConfigError: authorities or a token that cannot be read.
    """

    def __init__(self, section: LinkSection, credentials: Credentials | None) -> None:
        self._section = section
        self._credentials = credentials if section.shows_identity else None
        settings = HttpLinkSettings(
            url=section.url,
            ca_file=Path(section.tls_ca_file) if section.tls_ca_file else None,
            credentials=self._credentials,
        )
        self._tls = tls_context(settings)
        read_secret(section.token_file, "links.token_file")
        self._client = httpx.AsyncClient(
            base_url=section.url,
            verify=False if self._tls is None else self._tls,
            proxy=section.proxy or None,
            trust_env=False,
            headers=self._headers(),
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=1),
        )

    def _headers(self) -> dict[str, str]:
        """The token is read anew for each client and each request: somebody may have put a new one into the file."""
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        token = read_secret(self._section.token_file, "links.token_file")
        return headers | ({"Authorization": f"Bearer {token}"} if token else {})

    def blocking_client(self) -> httpx.Client:
        """The same for whoever blocks in a thread of its own, and closes it.

        Raises:
            LinkDownError: the token cannot be read now.
        """
        return httpx.Client(
            base_url=self._section.url,
            verify=False if self._tls is None else self._tls,
            proxy=self._section.proxy or None,
            trust_env=False,
            headers=self._headers_now(),
        )

    def _headers_now(self) -> dict[str, str]:
        """The same once the agent runs: whoever exchanges the token may be at it."""
        try:
            return self._headers()
        except ConfigError as error:
            raise LinkDownError(error.message) from error

    async def ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, content: bytes = b""
    ) -> tuple[int, httpx.Headers, bytes]:
        """One exchange of small documents: status below 400, headers, body.

        Raises:
            FirstlineError: there was no answer, or a refusal.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S), self.streaming(method, path, headers, content) as response:
                body = b""
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > LIMIT_BYTES:
                        raise ProtocolError(f"{self._section.url} answers with more than {LIMIT_BYTES} bytes.")
                return response.status_code, response.headers, body
        except TimeoutError as error:
            raise RemoteTimeoutError(f"{self._section.url} did not answer within {_TIMEOUT_S:g} s.") from error

    async def send(self, path: str, content: bytes) -> None:
        """PUTs a document, in parts: a link may take as long as it likes for all of them.

        Raises:
            FirstlineError: there was no answer, or a refusal.
        """

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(content), _PART_BYTES):
                yield content[start : start + _PART_BYTES]

        headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        async with self.streaming("PUT", path, headers, parts()) as response:
            async for _ in response.aiter_raw():
                pass

    @asynccontextmanager
    async def streaming(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] = b"",
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose body is still to come.

        Raises:
            FirstlineError: as `ask`, also while the body is read.
        """
        url = self._section.url
        own = {**self._headers_now(), **(headers or {})}
        try:
            timeout = httpx.Timeout(_SILENCE_S, connect=_TIMEOUT_S)
            async with self._client.stream(method, path, headers=own, content=content, timeout=timeout) as response:
                if self._credentials is not None and "date" in response.headers:
                    self._credentials.heard_date(response.headers["date"])
                if response.status_code >= 400:
                    body = b""
                    async for part in response.aiter_raw():
                        body += part
                        if len(body) > LIMIT_BYTES:
                            break
                    raise error_from(response.status_code, body, response.headers)
                yield response
        except httpx.TimeoutException as error:
            raise RemoteTimeoutError(f"{url} went silent.") from error
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise LinkDownError(f"{url}: {str(error).rstrip('.') or type(error).__name__}.") from error

    async def close(self) -> None:
        await self._client.aclose()
