"""HTTP/1.1 connections to one gateway through an HTTP proxy: httpx knows how. See `http_pool.py`."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable

import httpx

from firstline_core.errors import (
    LinkDownError,
    LinkError,
    PayloadTooLargeError,
    ProtocolError,
    RemoteTimeoutError,
)
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_body import read_body
from firstline_core.protocol.oip import Limits
from firstline_edge.cloud.http_pool import USER_AGENT, Call, HttpLinkSettings, Reply
from firstline_edge.cloud.link import LinkBusyError
from firstline_edge.telemetry.link_traffic import count

# httpx's exceptions and ours, most specific first. A connection that cannot be had within its own, shorter
# timeout is a link that is down; anything that is merely late is late.
_FOREIGN: tuple[tuple[type[Exception], type[LinkError]], ...] = (
    (httpx.ConnectTimeout, LinkDownError),
    (httpx.TimeoutException, RemoteTimeoutError),
    (httpx.NetworkError, LinkDownError),
    (httpx.ProxyError, LinkDownError),
    (httpx.HTTPError, ProtocolError),
    (httpx.InvalidURL, ProtocolError),
    (httpx.StreamError, ProtocolError),
)
# What a server that closed an idle connection, just as we used it, looks like.
_STALE = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
_STALE_RETRIES = 2
_FIRST_LINE_BYTES = 50


class ProxiedPool:
    """Some connections, and a seat for each: whoever waits for one waits here.

    httpcore looks at all that wait in its own queue whenever one of them comes or goes: at a thousand, for seconds.

    Args:
        settings: how to reach the gateway.
        connections: kept at most.
        tls: see `tls_context`; one for all pools, because loading the authorities takes 50 ms.
        limits: of what is read.

    Raises:
        ConfigError: a URL that cannot be used.
    """

    def __init__(
        self, settings: HttpLinkSettings, connections: int, tls: ssl.SSLContext | None, limits: Limits
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._limits = limits
        self._base = settings.url.rstrip("/")
        # TCP_NODELAY is httpcore's own default.
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", "User-Agent": USER_AGENT},
            verify=False if tls is None else tls,
            proxy=settings.proxy,
            trust_env=False,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        self._seats = asyncio.Semaphore(connections)

    async def exchange(self, call: Call, token: str, timeout_s: float) -> Reply:
        """Sends it, once more on a fresh connection where a kept one had been closed, and reads the answer.

        Raises:
            LinkBusyError: no connection became free in time; nothing was sent.
            LinkError: there was no answer, or none that is HTTP.
        """
        steps: list[str] = []
        try:
            # httpx limits each read; only this limits them all together.
            async with asyncio.timeout(timeout_s), self._seats:
                for _ in range(_STALE_RETRIES):
                    steps.clear()
                    try:
                        return await self._send(call, token, timeout_s, steps)
                    except _STALE:
                        # A kept connection that the server had closed: try again, on the way to a fresh one. The
                        # request's id makes that safe, should it have been heard after all.
                        if any(step.endswith("connect_tcp.started") for step in steps):
                            raise
                return await self._send(call, token, timeout_s, steps)
        except TimeoutError as error:
            if not steps:
                raise LinkBusyError(
                    f"All {self._connections} connections to {self._settings.url} were busy for {timeout_s:.3g} s."
                ) from error
            raise RemoteTimeoutError(f"{self._settings.url} did not answer within {timeout_s:.3g} s.") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _translated(error, self._settings.url) from error
        except PayloadTooLargeError as error:
            raise ProtocolError(f"{self._settings.url} answered with too much. {error.message}") from error

    async def _send(self, call: Call, token: str, timeout_s: float, steps: list[str]) -> Reply:
        async def trace(event: str, _info: object) -> None:
            steps.append(event)  # the first one comes when there is a seat

        # Where the whole is shorter than the time to connect, what ran out is the whole.
        connect_s = self._settings.connect_timeout_s
        headers = {} if call.encoded is None else dict(headers_for(call.encoded))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if call.trace is not None:
            headers |= call.trace.headers()
        timeout = httpx.Timeout(None, connect=connect_s if connect_s < timeout_s else None)
        request = self._client.build_request(
            call.method,
            self._base + call.path,
            content=None if call.encoded is None else call.encoded.body,
            headers=headers,
            timeout=timeout,
            extensions={"trace": trace},
        )
        try:
            response = await self._client.send(request, stream=True)
        finally:
            # Sent in vain is sent, too; what happened to the last part of a body that was cut off nobody knows.
            if call.payer and any(step.endswith("send_request_headers.complete") for step in steps):
                body_bytes = 0 if call.encoded is None else len(call.encoded.body)
                count(call.payer, sent=_head_bytes(request.headers.raw) + body_bytes)
        async with contextlib.aclosing(response):
            heard = dict(response.headers)
            if self._settings.credentials is not None and "date" in heard:
                self._settings.credentials.heard_date(heard["date"])
            try:
                body = await read_body(response.aiter_raw(), heard, self._limits)
            finally:
                if call.payer:
                    count(call.payer, received=_head_bytes(response.headers.raw) + response.num_bytes_downloaded)
            return response.status_code, heard, body

    async def drain(self) -> None:
        """Closes once what is under way has ended; nothing new may begin."""
        for _ in range(self._connections):
            await self._seats.acquire()
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()


def _translated(error: Exception, url: str) -> LinkError:
    kind = next(ours for theirs, ours in _FOREIGN if isinstance(error, theirs))
    return kind(f"{url}: {str(error) or type(error).__name__}.")


def _head_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Bytes of headers on the wire, with an average first line."""
    return _FIRST_LINE_BYTES + sum(len(name) + len(value) + 4 for name, value in headers)
