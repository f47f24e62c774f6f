"""The HTTP server of both tiers, driven by bytes on sockets: requests that are cut, pipelined, slow or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import re
import resource
import socket
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import httptools
import pytest
import uvicorn
from support.waiting import until
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from firstline_core.protocol import asgi
from firstline_core.protocol.http import Reply
from firstline_core.protocol.http_server import Connection, HttpServer, ServerLimits, connections_within_descriptors
from firstline_core.protocol.limits import DEFAULT_LIMITS

TIMEOUT_S = 10.0
SHORT_S = 0.2
SHORT = ServerLimits(head_s=SHORT_S, idle_s=SHORT_S, write_s=SHORT_S)

Handler = Callable[[asgi.Request], Awaitable[Reply | asgi.Streamed]]
Application = Callable[[asgi.Scope, asgi.Receive, asgi.Send], Awaitable[None]]


def asking(body: bytes, *lines: str, path: str = "/a") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


@contextlib.asynccontextmanager
async def served(handle: Handler, limits: ServerLimits | None = None) -> AsyncIterator[tuple[HttpServer, int]]:
    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        request = asgi.Request(scope, receive)
        try:
            reply = await handle(request)
        except asgi.ClientDisconnectedError:
            return
        except asyncio.CancelledError:
            reply = Reply(503, {}, b"cancelled")
        if isinstance(reply, asgi.Streamed):
            await asgi.send_stream(reply, request, send)
        else:
            await asgi.send_reply(reply, send)

    async with running(app, limits) as started:
        yield started


@contextlib.asynccontextmanager
async def running(app: Application, limits: ServerLimits | None = None) -> AsyncIterator[tuple[HttpServer, int]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = HttpServer(app, limits=limits or ServerLimits())
        await server.start([listener])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield server, listener.getsockname()[1]
        finally:
            await server.stop(0)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    return int(head.split()[1]), await reader.readexactly(int(length[1]) if length else 0)


def connections(server: HttpServer) -> list[Connection]:
    return list(server._connections)


async def echo(request: asgi.Request) -> Reply:
    return Reply(200, {}, request.path.encode() + b" " + await request.body(DEFAULT_LIMITS))


class Gate:
    """Answers nothing until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.held = 0
        self.lost = 0

    async def __call__(self, request: asgi.Request) -> Reply:
        self.held += 1
        try:
            await request.body(DEFAULT_LIMITS)
        except asgi.ClientDisconnectedError:
            self.lost += 1
            raise
        await self.opened.wait()
        return Reply(200, {}, request.path.encode())


# --- Requests and answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body"),
    [([(b"content-length", b"5")], None), ([], None), ([(b"content-length", b"5")], b"ab")],
    ids=["fails before a body of known length", "fails before a stream", "sends too short a body"],
)
async def test_broken_answer_closes_its_connection(headers: list[tuple[bytes, bytes]], body: bytes | None) -> None:
    async def app(_scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if body is None:
            raise OSError("the disk failed")
        await send({"type": "http.response.body", "body": body})

    async with running(app) as (server, port):
        for _ in range(2):  # the next connection works
            async with connected(port) as (reader, writer):
                writer.write(asking(b"") * 2)
                answer = await asyncio.wait_for(reader.read(), 1)
            assert answer.count(b"HTTP/1.1") <= 1
            if answer.startswith(b"HTTP/1.1 500"):
                assert b"connection: close" in answer
            else:
                assert not answer or answer.endswith(b"\r\n\r\n" + (body or b""))  # an answer without its end
        await until(lambda: not connections(server))


async def test_a_second_start_replaces_the_first_and_closes_the_connection() -> None:
    async def app(_scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
        for status in (200, 404):
            headers = [(b"content-length", b"5")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"other"})

    async with running(app) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"") * 2)
        answer = await asyncio.wait_for(reader.read(), 1)
        assert answer.startswith(b"HTTP/1.1 404") and answer.endswith(b"connection: close\r\n\r\nother")
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_late_message_of_an_answer_leaves_the_next_answer_whole() -> None:
    sends: list[asgi.Send] = []

    async def app(_scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
        sends.append(send)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        if len(sends) == 2:
            with pytest.raises(RuntimeError, match="already completed"):
                await sends[0]({"type": "http.response.body", "body": b"late!"})
        await send({"type": "http.response.body", "body": b"whole"})

    async with running(app) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"") * 2)
        assert [await answered(reader) for _ in range(2)] == [(200, b"whole")] * 2


async def test_an_answered_request_is_freed_without_the_garbage_collector() -> None:
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    async def noting(request: asgi.Request) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        return await echo(request)

    async with served(noting) as (_, port), connected(port) as (reader, writer):
        gc.disable()
        try:
            for _ in range(3):
                writer.write(asking(b"xy"))
                await answered(reader)
            await until(lambda: [each() for each in tasks[:-1]] == [None, None])
        finally:
            gc.enable()


async def test_an_idle_connection_keeps_nothing_of_its_last_request() -> None:
    context_variable: contextvars.ContextVar[Held] = contextvars.ContextVar("kept")
    bodies: list[weakref.ref[Held]] = []

    class Held:
        """What an application holds of a body."""

    async def holding(request: asgi.Request) -> Reply:
        context_variable.set(Held())
        bodies.append(weakref.ref(context_variable.get()))
        return await echo(request)

    async with served(holding) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"xy"))
        await answered(reader)
        await until(lambda: bodies[0]() is None)


async def test_every_answer_has_a_date() -> None:
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        assert re.search(rb"\r\ndate: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT\r\n", await reader.readuntil(b"\r\n\r\n"))


async def test_no_answer_waits_for_an_acknowledgement() -> None:
    async with served(echo) as (server, port), connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        await answered(reader)
        (connection,) = connections(server)
        assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_connection_close_ends_the_connection() -> None:
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"xy", "Connection: close") + b"what comes after it counts for nothing")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head
        assert await reader.read() == b"/a xy"


async def test_an_early_answer_is_not_lost_to_a_reset() -> None:
    async def refuse(_request: asgi.Request) -> Reply:
        return Reply(413, {}, b"too much")

    async with served(refuse) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"x" * 500_000, "Connection: close"))
        assert await answered(reader) == (413, b"too much")
        assert await reader.read() == b""
    async with served(refuse) as (_, port), connected(port) as (reader, writer):
        for _ in range(2):  # the connection stays open, and the next request is read from its beginning
            writer.write(asking(b"x" * 500_000))
            assert await answered(reader) == (413, b"too much")


async def test_http_1_0_gets_one_answer_and_no_100_continue() -> None:
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(b"POST /a HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nxy")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"connection: close\r\n\r\n/a xy")


# --- Requests that are refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        ("GET /a HTTP/1.1\r\n", 400, b"no Host header"),
        ("GET /a HTTP/1.0\r\n", 400, b"no Host header"),
        ("GET /a HTTP/1.1\r\nHost: a\r\nhost: b\r\n", 400, b"host came twice"),
        ("GET /a HTTP/1.0\r\nHost: a\r\nHost: a\r\n", 400, b"host came twice"),
        ("GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nauthorization: x\r\n", 400, b"authorization came twice"),
        (
            "POST /a HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 1\r\n"
            "Inference-Header-Content-Length: 1\r\n",
            400,
            b"inference-header-content-length came twice",
        ),
        ("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n", 400, b"no valid HTTP/1.1"),
        ("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n", 501, b"chunked"),
        ("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n", 501, b"chunked"),
        ("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501, b"chunked"),
        ("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n", 400, b"no valid HTTP/1.1"),
        (f"GET /a HTTP/1.1\r\nHost: a\r\nX: {'a' * 70_000}\r\n", 431, b"larger than 65536 bytes"),
    ],
)
@pytest.mark.parametrize("before", [(), ("Connection: Upgrade", "Upgrade: h2c")], ids=["plain", "upgrade"])
async def test_ambiguous_heads_are_refused_after_the_answers_before_them(
    before: tuple[str, ...], head: str, status: int, reason: bytes
) -> None:
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"xy", *before) + head.encode() + b"\r\n")
        assert await answered(reader) == (200, b"/a xy")
        found, body = await answered(reader)
        assert (found, reason in body) == (status, True), body
        assert await reader.read() == b""


async def test_a_lack_of_memory_is_not_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_connection: Connection, _body: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(Connection, "on_body", fail)
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"xy"))
        assert await reader.read() == b""


@pytest.mark.parametrize(("lines", "status"), [(9_000, 400), (20_000, 431)])
async def test_a_head_of_repeated_headers_is_refused_in_linear_time(lines: int, status: int) -> None:
    took_s = []
    for _ in range(3):  # a search for garbage may take as long as a quadratic check
        async with served(echo) as (_, port), connected(port) as (reader, writer):
            started_s = time.thread_time()
            writer.write(b"GET /a HTTP/1.1\r\n" + b"host:\r\n" * lines + b"\r\n")
            assert (await answered(reader))[0] == status
            took_s.append(time.thread_time() - started_s)
    assert min(took_s) < 0.25


# --- Slow, idle and absent clients -----------------------------------------------------------------------------------


async def test_a_request_that_asks_for_it_is_cancelled_when_its_client_leaves() -> None:
    cancelled: list[bool] = []

    async def wait(request: asgi.Request) -> Reply:
        request.info.cancel_on_disconnect()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.info.disconnected)
        return Reply(200, {}, b"")

    async with served(wait) as (server, port), connected(port) as (_, writer):
        writer.write(asking(b"x"))
        await until(lambda: len(server.state.tasks) == 1)
        writer.transport.abort()
        await until(lambda: cancelled == [True])


@pytest.mark.parametrize("sent", [b"", b"POST /a HT", asking(b"x") + b"\r\n", asking(b"x", path="/early")[:-1]])
async def test_idle_and_unfinished_connections_end(sent: bytes) -> None:
    async def early(request: asgi.Request) -> Reply:
        return Reply(404, {}, b"") if request.path == "/early" else await echo(request)

    async with served(early, SHORT) as (_, port), connected(port) as (reader, writer):
        writer.write(sent)
        await reader.read()


async def test_the_time_in_the_kernel_is_part_of_the_arrival() -> None:
    waited_s: list[float] = []

    async def note(request: asgi.Request) -> Reply:
        waited_s.append(asyncio.get_running_loop().time() - request.info.arrived_s)
        return await echo(request)

    async with served(note) as (server, port), connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        await answered(reader)
        await asyncio.to_thread(lambda: None)
        (connection,) = connections(server)
        connection.transport.pause_reading()  # as a busy event loop does
        writer.write(asking(b"x"))
        await asyncio.sleep(0.1)
        connection.transport.resume_reading()
        await answered(reader)
    assert waited_s[0] < waited_s[1]
    assert waited_s[1] > 0.05


# --- Numbers of connections ------------------------------------------------------------------------------------------


async def test_of_too_many_connections_the_oldest_idle_one_closes() -> None:
    gate = Gate()
    async with served(gate, ServerLimits(connections=3)) as (server, port), contextlib.AsyncExitStack() as stack:
        asker, oldest, younger = [await stack.enter_async_context(connected(port)) for _ in range(3)]
        asker[1].write(asking(b"x"))
        await until(lambda: gate.held == 1 and len(connections(server)) == 3)
        await stack.enter_async_context(connected(port))
        with contextlib.suppress(ConnectionResetError):
            assert await oldest[0].read() == b""
        gate.opened.set()
        for reader, writer in (asker, younger):
            if writer is not asker[1]:
                writer.write(asking(b"x"))
            assert (await answered(reader))[0] == 200


@pytest.mark.parametrize(
    ("descriptors", "limit"), [(resource.RLIM_INFINITY, 4096), (1 << 20, 4096), (1024, 512), (1, 1), (0, 1)]
)
def test_connections_take_half_of_the_descriptors_at_most(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, resource.RLIM_INFINITY))
    assert connections_within_descriptors() == limit


# --- The end ---------------------------------------------------------------------------------------------------------


async def test_a_server_stops_after_the_answers_that_are_due() -> None:
    gate = Gate()
    async with served(gate) as (server, port), connected(port) as idle, connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        await until(lambda: gate.held == 1)
        stopping = asyncio.create_task(server.stop(TIMEOUT_S))
        assert await idle[0].read() == b""
        gate.opened.set()
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head
        await stopping


async def test_a_server_without_connections_stops_at_once() -> None:
    async with served(echo) as (server, _):
        async with asyncio.timeout(1):
            await server.stop(TIMEOUT_S)


# --- Answers in pieces -----------------------------------------------------------------------------------------------


class Pieces:
    """A stream of as many pieces as are asked for, that tells when it was closed."""

    def __init__(self) -> None:
        self.closed = 0
        self.more = asyncio.Event()

    async def __call__(self, _request: asgi.Request) -> asgi.Streamed:
        stack = contextlib.ExitStack()
        stack.callback(self._close)
        return asgi.Streamed({"Content-Type": "text/plain"}, self._pieces(), stack)

    def _close(self) -> None:
        self.closed += 1

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        yield b"one"
        await self.more.wait()
        yield b"two"


async def test_an_answer_in_pieces_is_sent_as_they_come() -> None:
    pieces = Pieces()
    async with served(pieces) as (_, port), connected(port) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"transfer-encoding: chunked" in head
            assert await reader.readuntil(b"one\r\n") == b"3\r\none\r\n"
            pieces.more.set()
            assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\ntwo\r\n0\r\n\r\n"
        writer.write(b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nGET /a HTTP/1.0\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert (await reader.read()).endswith(b"connection: close\r\n\r\nonetwo")
        assert pieces.closed == 4


async def test_a_client_that_leaves_a_stream_releases_its_resources() -> None:
    pieces = Pieces()
    async with served(pieces) as (_, port), connected(port) as (reader, writer):
        writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"one")
        writer.transport.abort()
        await until(lambda: pieces.closed == 1)


async def test_a_request_knows_its_trace() -> None:
    seen: list[tuple[str, str] | None] = []

    async def note(request: asgi.Request) -> Reply:
        trace = request.trace
        seen.append(None if trace is None else (trace.parent_id, trace.state))
        return await echo(request)

    def traced(number: int, state: str) -> bytes:
        return asking(b"xy", f"traceparent: 00-{7:032x}-{number:016x}-01", f"tracestate: {state}", "X: y")

    async with served(note) as (_, port), connected(port) as (reader, writer):
        for request in (traced(1, "a=1"), asking(b"xy", "tracestate: a=1"), asking(b"xy")):
            writer.write(request)
            assert await answered(reader) == (200, b"/a xy")
        writer.write(traced(4, "a=1") + traced(5, "A") + traced(0, "a=1"))
        assert [await answered(reader) for _ in range(3)] == [(200, b"/a xy")] * 3
    assert seen == [(f"{1:016x}", "a=1"), None, None, (f"{4:016x}", "a=1"), (f"{5:016x}", ""), None]


# --- What uvicorn does not document ----------------------------------------------------------------------------------
async def test_uvicorn_has_what_the_server_relies_on() -> None:
    async with served(echo) as (server, port), connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        await answered(reader)
        (connection,) = connections(server)
        owners: dict[str, tuple[Any, tuple[str, ...]]] = {
            "protocol": (HttpToolsProtocol, (
                *("_unset_keepalive_if_required", "_start_asgi_task", "timeout_keep_alive_handler", "shutdown"),
                *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
                "on_response_complete",
            )),
            "connection": (connection, (
                *("parser", "transport", "flow", "pipeline", "scope", "headers", "url", "cycle", "tasks", "loop"),
                *("server_state", "expect_100_continue", "timeout_keep_alive_task"),
            )),
            "cycle": (connection.cycle, (
                *("scope", "transport", "flow", "message_event", "disconnected", "keep_alive", "response_started"),
                *("response_complete", "body", "default_headers", "waiting_for_100_continue", "on_response"),
                *("run_asgi", "send", "receive", "chunked_encoding", "expected_content_length"),
            )),
            "flow": (FlowControl(connection.transport), ("pause_reading", "resume_reading", "drain", "write_paused")),
            "configuration": (uvicorn.Config, ("load", "asgi_version")),
            "state": (ServerState(), ("connections", "tasks", "default_headers")),
            "module": (httptools_impl, ("RequestResponseCycle", "HEADER_RE", "HEADER_VALUE_RE", "STATUS_LINE")),
            "parser": (httptools.HttpRequestParser, ("set_dangerous_leniencies",)),
        }  # fmt: skip
        for kind, (owner, names) in owners.items():
            assert [name for name in names if not hasattr(owner, name)] == [], kind
