"""HTTP/1.1 to one server, for one purpose: a body there, a body back, over connections that are kept.

httptools parses, as it does for the server's side. General clients spend three to twenty times as long on what is not
needed here (`make escalation`): redirects, cookies, decoding, a lock for each step.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from firstline_core.errors import ConfigError, LinkDownError, LinkError, ProtocolError, RemoteTimeoutError

_CONNECT_S = 2.0
# Of what is no body: heads, trailers, and what goes with chunks, six bytes for each of a body in chunks of one.
_HEAD_LIMIT_BYTES, _CHUNKS_COST = 1 << 16, 8
_STALE_RETRIES = 2
_TURNS_TO_CLOSE = 4


def _ignore(_sent: int, _received: int) -> None:
    """Whom nobody listens to."""


class HttpReply(NamedTuple):
    """Status, headers by their names in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, limit_bytes: int, all_open: set[_Connection]) -> None:
        self._limit_bytes = limit_bytes
        self._all_open = all_open
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[HttpReply] | None = None
        self._reset()
        self.reusable = True
        self.received_bytes = 0  # of the answer to what was sent last

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._ends_with_connection = False

    def send(self, parts: list[bytes]) -> asyncio.Future[HttpReply]:
        """Sends a request; the answer is awaited before the next one."""
        assert self._transport is not None  # noqa: S101 (it is connected when it is handed out)
        self.received_bytes = 0
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.writelines(parts)
        return self._answered

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by what it can, not by its class
        self._all_open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._answered is None or self._answered.done():  # else it would be read as the next one's answer
            self.close()
            return
        self.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ProtocolError(f"it does not speak HTTP/1.1 ({error})"))
        if self._answered.done():
            return
        if self.received_bytes - _CHUNKS_COST * self._size_bytes > _HEAD_LIMIT_BYTES:
            self._fail(ProtocolError(f"its answer has more than {_HEAD_LIMIT_BYTES} bytes that are no body"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._all_open.discard(self)
        if exc is None and self.reusable and self._ends_with_connection:
            self.on_message_complete()
        self._fail(LinkDownError(f"it closed the connection ({exc or 'without an answer'})"))

    def _fail(self, error: LinkError) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
        self.close()

    # httptools' side

    def on_message_begin(self) -> None:
        if self._answered is None or self._answered.done():
            self.close()  # a second answer, with the first

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        declared = self._headers.get("content-length", "")
        self._ends_with_connection = not declared and "transfer-encoding" not in self._headers
        if declared.isdecimal() and int(declared[:18]) > self._limit_bytes:
            self._fail_too_large()

    def on_body(self, body: bytes) -> None:
        self._size_bytes += len(body)
        if self._size_bytes > self._limit_bytes:
            self._fail_too_large()
        else:
            self._parts.append(body)

    def _fail_too_large(self) -> None:
        self._fail(ProtocolError(f"it answered with too much, more than {self._limit_bytes} bytes"))

    def on_message_complete(self) -> None:
        if self._answered is None or self._answered.done():
            return
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, which nobody asked for
            self._headers.clear()
            self._ends_with_connection = False
            return
        if not self._parser.should_keep_alive():
            self.reusable = False
        reply = HttpReply(status, self._headers, b"".join(self._parts))
        self._reset()
        self._answered.set_result(reply)


class HttpClient:
    """Connections to one server. There are as many as there are requests at the same moment.

    Args:
        url: `http://HOST:PORT` or https; a path is kept as a prefix.
        token: the bearer token, "" for none.
        tls: whom to believe, for https.
        limit_bytes: the largest body of an answer.
        user_agent: what this client calls itself.
        connect_s: for TCP and TLS together.

    Raises:
        ConfigError: a host's name that cannot be one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        limit_bytes: int,
        user_agent: str = "firstline-gateway",
        connect_s: float = _CONNECT_S,
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        try:
            self._host = (parts.hostname or "").encode("idna").decode()
        except UnicodeError as error:
            raise ConfigError(f"The URL {url!r} names a host that cannot be: {error}.") from error
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = tls if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._common = (
            f"Host: {self._authority(parts.port)}\r\nUser-Agent: {user_agent}\r\nAccept-Encoding: identity\r\n"
        )
        if token:
            self._common += f"Authorization: Bearer {token}\r\n"
        self._limit_bytes = limit_bytes
        self._connect_s = connect_s
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    def _authority(self, port: int | None) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if port is None else f"{host}:{port}"

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        *,
        crossed: Callable[[int, int], None] = _ignore,
    ) -> HttpReply:
        """Sends it and reads the answer; again on a fresh connection where a kept one had been closed.

        Args:
            method: such as POST.
            path: comes after the URL's own.
            headers: beside those that every request has.
            body: b"" for none.
            timeout_s: for all of it.
            crossed: told of each try, when it ends: the bytes that were sent, and those that came.

        Raises:
            LinkError: there was no answer within `timeout_s`, or none that is HTTP; the message ends a sentence that
                begins with the server.
        """
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._common}{own}Content-Length: {len(body)}\r\n\r\n"
        request = [head.encode("latin-1"), body] if body else [head.encode("latin-1")]
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(_STALE_RETRIES):
                    kept = self._take()
                    if kept is None:
                        break
                    try:
                        return await self._send(kept, request, crossed)
                    except LinkDownError:
                        # It was closed while it was idle. What came after all, and was not answered, had no effect.
                        if kept.received_bytes:
                            raise
                return await self._send(await self._connect(), request, crossed)
        except TimeoutError as error:
            raise RemoteTimeoutError(f"it did not answer within {timeout_s:.3g} s") from error

    async def close(self) -> None:
        """Closes all connections; what is under way fails."""
        for _ in range(_TURNS_TO_CLOSE):  # of asyncio: what was given up while it connected is made, and then lost
            for connection in tuple(self._open):
                connection.close()
            await asyncio.sleep(0)
        while self._open:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _send(
        self, connection: _Connection, request: list[bytes], crossed: Callable[[int, int], None]
    ) -> HttpReply:
        try:
            reply = await connection.send(request)
        except BaseException:
            connection.close()  # what is cut off here would be read as the next one's answer
            raise
        finally:
            crossed(sum(map(len, request)), connection.received_bytes)
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._limit_bytes, self._open),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls is not None else None,
                )
        except TimeoutError as error:
            raise LinkDownError(f"nobody answers on port {self._port}") from error
        except OSError as error:  # ssl.SSLError is one
            raise LinkDownError(f"it cannot be reached ({error.strerror or error})") from error
        return connection
