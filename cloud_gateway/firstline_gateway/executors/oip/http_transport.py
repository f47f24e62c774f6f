"""HTTP to the servers behind the gateway: httpx over aiohttp, for a third of the CPU time of httpx's default."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from firstline_core.protocol.http_client import ClientSettings, HttpClient
from firstline_core.protocol.http_transport import SOCKET_OPTIONS, KeepingTransport
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.tls import verifying_context
from firstline_core.storage.secrets import read_token
from firstline_gateway.settings.settings import OipSection

_USER_AGENT = "firstline-gateway"
_IDLE_S = 15.0  # below what NATs and load balancers remember, from 30 s

Trace = Callable[[str, object], Awaitable[None]]
_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def open_transports(settings: OipSection, limits: Limits) -> dict[str, HttpClient]:
    """Returns a client for each configured server, by its URL.

    Raises:
        ConfigError: the token or the authorities cannot be used.
    """
    token = read_token(settings.token_file, "oip.token_file")
    tls = any(url.startswith("https:") for url in settings.endpoints) and verifying_context(
        settings.ca_file, "oip.ca_file"
    )
    headers = {"User-Agent": _USER_AGENT} | ({"Authorization": f"Bearer {token}"} if token else {})
    return {
        url: HttpClient(
            ClientSettings(url, headers=headers, tls=tls, idle_s=_IDLE_S),
            limit_bytes=limits.body_bytes,
            transport=PooledTransport(tls),
        )
        for url in (url.rstrip("/") for url in settings.endpoints)
    }


class PooledTransport(AiohttpTransport, KeepingTransport):
    """`httpx_aiohttp.AiohttpTransport` without cookies or a limit of connections, and with httpx's own exceptions.

    It reports new connections to the request's `trace` extension, as httpx's default transport does.

    Args:
        tls: verifies the server; False where no URL is https.
    """

    def __init__(self, tls: ssl.SSLContext | bool) -> None:
        self._connector: _Connector | None = None
        super().__init__(client=lambda: self._open_session(tls))

    async def close_idle(self) -> None:
        """See `KeepingTransport.close_idle`."""
        if self._connector is not None:
            self._connector.close_idle()

    def _open_session(self, tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(_report_connection)
        self._connector = _Connector(limit=0, ssl=tls, keepalive_timeout=_IDLE_S, socket_factory=_socket)
        return aiohttp.ClientSession(
            connector=self._connector, cookie_jar=aiohttp.DummyCookieJar(), trace_configs=[tracing]
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request; the answer's body is still to be read."""
        token = _trace.set(request.extensions.get("trace"))
        try:
            return await super().handle_async_request(request)
        except httpx.ConnectTimeout as error:  # httpx-aiohttp raises it for each ClientConnectionError
            cause, reason = error.__cause__, str(error)
            if isinstance(cause, aiohttp.ServerTimeoutError):
                raise
            if isinstance(cause, aiohttp.ServerDisconnectedError) and not isinstance(cause.message, str):
                reason = "within the head of its answer"  # the message is that head, whose values are not for callers
            failed = isinstance(cause, aiohttp.ClientConnectorError)
            raise (httpx.ConnectError if failed else httpx.ReadError)(reason, request=request) from error
        except aiohttp.ClientError as error:  # what httpx-aiohttp does not translate: an answer that is not HTTP
            raise httpx.RemoteProtocolError(str(error), request=request) from error
        finally:
            _trace.reset(token)


class _Connector(aiohttp.TCPConnector):
    """Drops a connection on which the server has sent something while it was idle: it is not the next answer.

    After `close_idle`, it also drops the connections that were open then.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._generation = 0
        self._generations: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def close_idle(self) -> None:
        self._generation += 1

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's signature)
    ) -> aiohttp.connector.Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None:
                return connection
            is_current = self._generations.setdefault(protocol, self._generation) == self._generation
            if is_current and not protocol.should_close:
                return connection
            connection.close()


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Returns an unconnected socket for one of the server's addresses."""
    family, kind, protocol, _, _ = address
    connecting = socket.socket(family, kind, protocol)
    for option in SOCKET_OPTIONS:
        connecting.setsockopt(*option)
    return connecting


async def _report_connection(_session: aiohttp.ClientSession, _context: SimpleNamespace, _parameters: object) -> None:
    trace = _trace.get()
    if trace is not None:
        await trace("connection.connect_tcp.started", {})
