"""The HTTP/1.1 server of both tiers: uvicorn's httptools protocol with limits, and a listener that starts and stops.

uvicorn parses requests and runs the ASGI application. Any client that reaches the port can send heads, trailers and
requests before a token is checked, so this module bounds what a connection may send and how long it may take. It
refuses requests whose end or addressee is ambiguous, bounds the number of connections and the time of TLS handshakes,
and stops without losing an answer. Which requests exist, and who may send them, is for the application.

`Connection` relies on attributes of `HttpToolsProtocol` and `RequestResponseCycle` that uvicorn does not document.
pyproject.toml bounds uvicorn's version for that reason, and the unit test of this module checks each attribute.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import resource
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from email.utils import formatdate
from functools import lru_cache, partial
from itertools import chain
from time import time
from typing import Any, NamedTuple, Protocol, cast

import httptools
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import RequestError
from firstline_core.protocol.asgi import STATE_KEY, AsgiApp, Message, RequestInfo, Scope, age_s
from firstline_core.protocol.http import closing_response
from firstline_core.protocol.sockets import listen
from firstline_core.telemetry.logs import logger

_ACCEPTED_PER_TURN = 64
_ACCEPT_RETRY_S = 1.0
_CANCELLED_S = 1.0
# How long a TLS connection may take to close after its last answer; many clients never answer `close_notify`.
_TLS_CLOSE_S = 0.5
# Turns of the event loop before and after the listeners close; each accepts and reads what has arrived by then.
_LAST_TURNS = 10
# A larger body is written after its head, which costs less than to copy it.
_JOINED_BYTES = 65_536
_UNKNOWN_LENGTH = cast(int, math.inf)  # of a body without a frame; uvicorn subtracts each part from it

_NOT_HTTP = "This is no valid HTTP/1.1 request; check its request line, headers and chunks."
_FRAMING = (b"content-length", b"transfer-encoding")
_SENT_ONCE = (b"host", b"authorization", b"content-length", b"inference-header-content-length")

log = logger(__name__)


class ServerLimits(Struct, frozen=True):
    """Bounds on connections, before the caller is known.

    Args:
        head_bytes: of a request line with its headers, of a trailer, and of a chunk's extensions.
        head_s: from the first byte of a head to its last. A later byte does not restart this time.
        idle_s: between two requests; longer than clients keep idle connections, so that they close them.
        write_s: for a client that does not read its answer.
        handshake_s: for a TLS handshake.
        pipelined: requests that wait for the answer to an earlier one on the same connection.
        pending: connections that have not sent a whole head yet; the oldest is closed first.
        connections: all connections; the oldest idle one is closed first. None for no limit.
    """

    head_bytes: int = 65_536
    head_s: float = 20.0
    idle_s: float = 75.0
    write_s: float = 30.0
    handshake_s: float = 10.0
    pipelined: int = 16
    pending: int = 4096
    connections: int | None = None


def connections_within_descriptors(limit: int = ServerLimits().pending) -> int:
    """Returns at most half of the file descriptors of this process, so that the rest serves requests."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if soft == resource.RLIM_INFINITY else max(1, min(limit, soft // 2))


class PeerRegistry(Protocol):
    """Knows which TLS client certificates have open connections."""

    def connected(self, certificate: bytes, connection: Connection) -> Any:
        """Registers a connection.

        Args:
            certificate: DER; its chain was verified in the handshake.
            connection: to be aborted when the certificate is revoked.

        Returns:
            The peer, which the scopes of this connection's requests carry.
        """
        ...

    def disconnected(self, peer: Any, connection: Connection) -> None:
        """Removes a connection; `peer` is what `connected` returned."""
        ...


class _RequestFaultError(Exception):
    """The bytes are no request that this server accepts."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class _Timer:
    """Calls `expire` once, `seconds` after the first `start`; a later `start` changes nothing until `cancel`."""

    __slots__ = ("_expire", "_loop", "_running", "_seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._running: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._running is None:
            self._running = self._loop.call_later(self._seconds, self._expire)

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None


class Connection(HttpToolsProtocol):
    """A connection of a client.

    Args:
        server: the server that accepted it.
        accepted: its socket.
    """

    _info: RequestInfo  # of the request that was read last

    def __init__(self, server: HttpServer, accepted: socket.socket) -> None:
        super().__init__(server.config, server.state, {}, asyncio.get_running_loop())
        self._server = server
        self._socket = accepted
        self._limits = server.limits
        self._peer: Any = None
        self._head_timer = _Timer(self.loop, self._limits.head_s, self.timeout_keep_alive_handler)
        self._stall_timer = _Timer(self.loop, self._limits.write_s, self.abort)
        self._answering: RequestResponseCycle | None = None  # `cycle` is that of the request that was read last
        self._in_message = self._in_head = self._has_cycle = False
        self._ended_whole = False  # the latest bytes ended with a request
        self._replaying = self._lingering = False
        self._unread_bytes = 0  # since the last body, whether or not the parser has made a header of them
        self._head_bytes = 0  # of this message's head and trailer
        self._idle_since_s: float | None = self.loop.time()  # None during a request
        self._refusal = b""  # sent after the answers that are due; nothing more is read

    @property
    def is_idle(self) -> bool:
        """Whether it is open and no request is being answered."""
        return self.transport is None or not (self.transport.is_closing() or self._is_answering())

    def abort(self) -> None:
        """Closes the connection at once, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()
        else:  # during the TLS handshake
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls, peers = transport.get_extra_info("ssl_object"), self._server.peers
        if tls is not None and peers is not None and (certificate := tls.getpeercert(binary_form=True)) is not None:
            self._peer = peers.connected(certificate, self)
        self._end_if_idle()
        if self._server.stopping:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._head_timer.cancel()
        self._stall_timer.cancel()
        self._unset_keepalive_if_required()
        if self._peer is not None and self._server.peers is not None:
            self._server.peers.disconnected(self._peer, self)
        for cycle in {self._answering, self.cycle}:
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
                _info_of(cycle).disconnect()
        self.pipeline.clear()
        self.cycle = self._answering = None  # type: ignore[assignment]  # None until the first request, too
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer.start()

    def resume_writing(self) -> None:
        self._stall_timer.cancel()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            self.flow.pause_reading()  # until the next answer is sent: a flood must not delay the answers that are due
            return
        self._idle_since_s = None
        self._unread_bytes += len(data)
        self._ended_whole = False
        try:
            self._feed(data)
            if self._unread_bytes > self._limits.head_bytes:
                raise self._too_long()
        except httptools.HttpParserError as error:  # also what a callback raises, as its context
            fault = error.__context__
            if isinstance(fault, MemoryError):
                raise fault from None  # ends the connection, so that the client retries: its request is not wrong
            self._refuse(fault if isinstance(fault, _RequestFaultError) else _RequestFaultError(400, _NOT_HTTP))
        except _RequestFaultError as fault:
            self._refuse(fault)
        if self._refusal or self.transport.is_closing():
            return
        if self._is_answering() or self._ended_whole:
            self._head_timer.cancel()
        else:
            self._head_timer.start()
        if self._has_cycle and not self.cycle.response_complete:
            self.cycle.transport = cast(asyncio.Transport, _LingeringTransport(self))

    def _feed(self, data: bytes | memoryview) -> None:
        """Parses bytes. Heads may ask for another protocol, as Java's client does for HTTP/2.

        llhttp stops after such a head and does not read its body, which could then pass for the next request. The
        request is answered over HTTP/1.1: another parser is fed a head that frames the same body, and continues there.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]
            keep_alive = b"" if self.parser.should_keep_alive() else b"Connection: close\r\n"
            framing = b"".join(b"%b: %b\r\n" % each for each in self.headers if each[0] in _FRAMING)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
            self._replaying = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b%b\r\n" % (keep_alive, framing))

    # httptools

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._in_message = self._in_head = True
        self._has_cycle = self._ended_whole = False
        self._unread_bytes = self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._head_bytes += len(url)
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self.headers.append((name.lower(), value))  # their size is checked once, in `_check_head`
        elif not self._replaying:  # a trailer is not a header (RFC 9110, section 6.5.1)
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > self._limits.head_bytes:
                raise self._too_long()

    def on_headers_complete(self) -> None:
        if self._replaying:
            self._replaying = False
            return
        if self.cycle is None:  # the first request
            self._server.no_longer_pending(self)
        self._check_head(self.parser.get_http_version())
        self._in_head = False
        if self._is_answering() and len(self.pipeline) >= self._limits.pipelined:
            raise _RequestFaultError(400, f"More than {self._limits.pipelined} requests are pipelined; send fewer.")
        self._info = RequestInfo(self._server.clock.monotonic_s() - age_s(self._socket), self._peer)
        self.scope["state"][STATE_KEY] = self._info
        self.server_state.default_headers = _common_headers(int(time()))
        super().on_headers_complete()
        self._has_cycle = True
        if self.expect_100_continue:  # whether the body follows a refusal is unknown, see `on_message_complete`
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its body is yet to be read, see `_feed`
        self._in_message = self._has_cycle = False
        self._ended_whole = True
        cycle = self.cycle
        self._info.whole = True
        if self.expect_100_continue and not (cycle.response_started or self._server.stopping):
            cycle.keep_alive = self.parser.should_keep_alive()
        super().on_message_complete()
        if self._lingering:
            self.transport.close()

    def _too_long(self) -> _RequestFaultError:
        part = "request line and headers are" if self._in_head else "chunk's extension or the trailer is"
        return _RequestFaultError(431, f"The {part} larger than {self._limits.head_bytes} bytes; send fewer.")

    def _check_head(self, http_version: str) -> None:
        """Refuses a head that another server on the way could read differently (RFC 9112, sections 3.2 and 6.1)."""
        self._head_bytes += sum(map(len, chain.from_iterable(self.headers)))
        if self._head_bytes > self._limits.head_bytes:
            raise self._too_long()
        latest = dict(self.headers)
        if len(latest) < len(self.headers):
            names = [name for name, _ in self.headers]
            if twice := [name for name in _SENT_ONCE if names.count(name) > 1]:
                raise _RequestFaultError(400, f"The header {twice[0].decode()} came twice; send it once.")
        if b"transfer-encoding" in latest:
            codings = b",".join(value for name, value in self.headers if name == b"transfer-encoding").split(b",")
            if any(coding.strip().lower() != b"chunked" for coding in codings):
                raise _RequestFaultError(501, "Only the transfer coding 'chunked' is supported; send no other.")
        if b"expect" in latest and http_version == "1.1":
            self.expect_100_continue = latest[b"expect"].lower() == b"100-continue"
        if b"host" not in latest:
            raise _RequestFaultError(400, "The request has no Host header; send exactly one.")

    # Answers

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        cycle.send = partial(self._send, cycle, [])  # type: ignore[method-assign]
        task = self.loop.create_task(cycle.run_asgi(app), context=contextvars.Context())
        self.tasks.add(task)
        task.add_done_callback(self._server.ended)
        _info_of(cycle).task = task

    async def _send(self, cycle: RequestResponseCycle, held: list[tuple[Message, _Head]], message: Message) -> None:
        """Sends a part of an answer. An answer with one body is written in one piece; uvicorn sends all others.

        The start of an answer of known length is held until its body comes. A second start, such as that of uvicorn's
        500, means that the application failed in between; it replaces the first, and the connection closes after it.
        A client of HTTP/1.0 knows no chunks: a body of unknown length has no frame, and ends with the connection.
        """
        start = held.pop() if held else None
        if message["type"] == "http.response.start" and not cycle.response_started:
            if start is not None:
                cycle.keep_alive = False
            head = _head_of(tuple(message["headers"]))
            if head.length is not None:
                held.append((message, head))
                return
            if cycle.scope["http_version"] == "1.0":
                cycle.chunked_encoding, cycle.expected_content_length = False, _UNKNOWN_LENGTH
        elif start is not None:
            (first, head), body = start, message.get("body", b"")
            is_whole = head.length == len(body) and not message.get("more_body")
            if is_whole and head.lines and cycle.keep_alive and cycle.scope["method"] != "HEAD":
                if cycle.flow.write_paused:
                    await cycle.flow.drain()
                if not cycle.disconnected:
                    self._write_whole(cycle, STATUS_LINE[first["status"]], head.lines, body)
                return
            await RequestResponseCycle.send(cycle, cast(Any, first))
        elif cycle.expected_content_length == _UNKNOWN_LENGTH and not message.get("more_body"):
            cycle.expected_content_length = len(message.get("body", b""))  # the last part ends the body
        await RequestResponseCycle.send(cycle, cast(Any, message))

    def _write_whole(self, cycle: RequestResponseCycle, head: bytes, lines: bytes, body: bytes) -> None:
        for name, value in cycle.default_headers:
            head += b"%b: %b\r\n" % (name, value)
        head += lines
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        if len(body) <= _JOINED_BYTES:
            cycle.transport.write(head + body)
        else:
            cycle.transport.write(head)
            cycle.transport.write(body)
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def on_response_complete(self) -> None:
        if self._answering is not None:
            # It refers to the cycle: only the garbage collector would free both.
            vars(self._answering).pop("send", None)
            # Its context may refer to the request's body, and the connection keeps this cycle until the next request.
            _info_of(self._answering).task = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal:
            self._end_refusing()
        else:
            self._idle_since_s = self.loop.time()

    def shutdown(self) -> None:
        """Closes the connection after the answers that are due."""
        if self.transport is None:
            self.abort()
        else:
            super().shutdown()
            if self.transport.is_closing():
                self.loop.call_later(_TLS_CLOSE_S, self.transport.abort)

    def close_after_request(self) -> None:
        """Closes the connection once the rest of the present request was read."""
        if self._in_message and self.transport.can_write_eof() and not self.transport.is_closing():
            self._lingering = True
            self.transport.write_eof()
            self._head_timer.start()
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Ends an idle or slow connection; one whose client reads nothing would otherwise stay half closed."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _end_if_idle(self) -> None:
        """Ends the connection if it has been idle for too long, or looks again: one timer serves all requests."""
        since_s, limit_s = self._idle_since_s, self._limits.idle_s
        left_s = limit_s if since_s is None else since_s + limit_s - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self._end_if_idle)
        else:
            self.timeout_keep_alive_handler()

    def _refuse(self, fault: _RequestFaultError) -> None:
        """Ends the connection with an error, after the answers to the requests before."""
        if self.transport.is_closing():
            return
        error = RequestError(fault.sentence)
        self._refusal = closing_response(fault.status, error)
        log.info("request refused", request_id=error.identify(), status=fault.status, error=fault.sentence)
        self._head_timer.cancel()
        if self._has_cycle and self.pipeline:
            self.pipeline.popleft()  # the request whose body is wrong
        elif not self._has_cycle and self._answering is not None and not self._answering.response_complete:
            return  # after the answer
        else:
            self._end_refusing()  # the application would wait for the rest of the body

    def _end_refusing(self) -> None:
        # Where half of an answer was sent, only the end of the connection tells the client.
        if self._answering is None or not self._answering.response_started or self._answering.response_complete:
            self.transport.write(self._refusal)
        self.transport.close()


def _info_of(cycle: RequestResponseCycle) -> RequestInfo:
    info: RequestInfo = cast(Scope, cycle.scope)["state"][STATE_KEY]
    return info


class _LingeringTransport:
    """The transport of an answer whose request may still be arriving.

    The kernel resets a connection that is closed with unread data, and the client may then lose the answer.
    """

    def __init__(self, connection: Connection) -> None:
        self.close = connection.close_after_request
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing


class _Head(NamedTuple):
    """The headers of an answer.

    Attributes:
        length: of the body, as they declare it; None without one.
        lines: as they are sent, and the end of the head; b"" if uvicorn has to send them.
    """

    length: int | None
    lines: bytes


@lru_cache(1024)
def _head_of(headers: tuple[tuple[bytes, bytes], ...]) -> _Head:
    found = dict(headers)
    declared = found.get(b"content-length")
    is_plain = not (
        b"transfer-encoding" in found
        or b"connection" in found
        or HEADER_RE.search(b"".join(found))
        or HEADER_VALUE_RE.search(b"".join(value for _, value in headers))
    )
    lines = b"\r\n".join([*map(b": ".join, headers), b"", b""]) if is_plain else b""
    return _Head(None if declared is None else int(declared), lines)


@lru_cache(1)
def _common_headers(now_s: int) -> list[tuple[bytes, bytes]]:
    """Returns the headers of every answer to a request; refused bytes get `http.closing_response` without them."""
    return [(b"date", formatdate(now_s, usegmt=True).encode())]


@dataclass(eq=False)
class HttpServer:
    """Accepts connections and runs an ASGI application on them; wakes for nothing else.

    Args:
        app: answers every request, and every failure.
        limits: of connections.
        clock: of `RequestInfo.arrived_s`.
        tls: context of the server; None for plain HTTP.
        peers: learns of client certificates.

    Attributes:
        config: uvicorn's.
        state: uvicorn's, shared by all connections.
        stopping: whether connections close after their present answer.
    """

    app: AsgiApp
    _: KW_ONLY
    limits: ServerLimits
    clock: Clock = SYSTEM_CLOCK
    tls: ssl.SSLContext | None = None
    peers: PeerRegistry | None = None
    stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.config = uvicorn.Config(
            cast(Any, self.app),
            http=HttpToolsProtocol,
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
        )
        self.state = ServerState()
        self._listeners: list[socket.socket] = []
        self._retry: asyncio.TimerHandle | None = None
        self._connections: dict[Connection, None] = {}  # oldest first
        self._pending: dict[Connection, None] = {}  # those without a whole head so far, oldest first
        self._handshakes: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def start(self, listeners: Iterable[socket.socket]) -> None:
        """Accepts connections from now on, on sockets that are bound.

        The server makes the handshakes itself, because asyncio's own hides a connection until its handshake has ended.

        Raises:
            CapacityError: another process began to listen on an address first.
        """
        for listener in listeners:
            listener.setblocking(False)
            listen(listener)
            self._listeners.append(listener)
        self._start_accepting()

    async def stop(self, drain_s: float) -> None:
        """Accepts no more connections, and ends those that are open with their present answers.

        Connections that wait in the kernel would be reset, so the server accepts and reads them first.

        Args:
            drain_s: time for the answers; requests that take longer are cancelled.
        """
        await _turns()
        self._stop_accepting()
        while self._listeners:
            self._listeners.pop().close()
        await _turns()
        self.stopping = True
        for connection in tuple(self._connections):
            connection.shutdown()
        await self._until_ended(drain_s)
        for task in self.state.tasks:
            task.cancel()
        await self._until_ended(_CANCELLED_S if self.state.tasks else 0.0)
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    async def _until_ended(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._connections or self.state.tasks:
                    self._changed.clear()
                    await self._changed.wait()

    def _start_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.add_reader(listener.fileno(), self._accept, listener)

    def _stop_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        if self._retry is not None:
            self._retry.cancel()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, no memory
                log.error("connection not accepted", error=error.strerror)
                self._stop_accepting()
                self._retry = loop.call_later(_ACCEPT_RETRY_S, self._start_accepting)
                return
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                # Otherwise the body of an answer waits for the client to acknowledge its head: 40 ms on Linux.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, accepted)
            self._opened(connection)
            task = loop.create_task(self._serve(connection, accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _serve(self, connection: Connection, accepted: socket.socket) -> None:
        handshake_s = self.limits.handshake_s if self.tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self.tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:  # ssl.SSLError is one
            log.debug("the TLS handshake failed", error=str(error))
            self.closed(connection)

    # Connections call these.

    def _opened(self, connection: Connection) -> None:
        """Counts a connection; if there are too many, the one that has asked nothing for longest is closed."""
        self._connections[connection] = self._pending[connection] = None
        if len(self._pending) > self.limits.pending:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.abort()
        if self.limits.connections is not None and len(self._connections) > self.limits.connections:
            next(filter(lambda each: each.is_idle, self._connections)).abort()

    def no_longer_pending(self, connection: Connection) -> None:
        """Notes that the connection has sent a whole head."""
        self._pending.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """Removes a connection that has ended."""
        self._connections.pop(connection, None)
        self._pending.pop(connection, None)
        if self.stopping:
            self._changed.set()

    def ended(self, task: asyncio.Task[None]) -> None:
        """Removes the task of a request that has ended."""
        self.state.tasks.discard(task)
        if self.stopping:
            self._changed.set()


async def _turns() -> None:
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)
