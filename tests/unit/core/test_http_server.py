"""Requests as bytes on one connection of our own server: cut anywhere, sent ahead, given up, and left unread."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.at_once import in_task
from firstline_core.protocol import http_bounds, http_connection, http_server
from firstline_core.protocol.http import Reply
from firstline_core.protocol.http_connection import Connection
from firstline_core.protocol.http_reading import NoRequestError, RequestParser
from firstline_core.protocol.http_request import ClientLeftError, Head, Request, Streamed
from firstline_core.protocol.http_server import HttpServer

TIMEOUT_S = 10.0
SHORT_S = 0.2

Handler = Callable[[Request], Awaitable[Reply | Streamed]]


def asking(body: bytes, *lines: str, path: str = "/a") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


@contextlib.asynccontextmanager
async def served(handle: Handler) -> AsyncIterator[tuple[HttpServer, int]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = HttpServer(handle)
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


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what is awaited is in the server, which has no event for it)
        await asyncio.sleep(0.001)


async def read_all(request: Request) -> bytes:
    return b"".join([chunk async for chunk in request.chunks()])


async def echo(request: Request) -> Reply:
    return Reply(200, {}, request.head.path.encode() + b" " + await read_all(request))


class Gate:
    """Answers nothing until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.held = 0
        self.lost = 0

    async def __call__(self, request: Request) -> Reply:
        await in_task()
        self.held += 1
        try:
            await read_all(request)
        except ClientLeftError:
            self.lost += 1
            raise
        await self.opened.wait()
        return Reply(200, {}, request.head.path.encode())


async def test_what_is_sent_ahead_is_answered_in_its_order() -> None:
    async def slow_and_quick(request: Request) -> Reply:
        if request.head.path == "/slow":
            await in_task()
            async with asyncio.timeout(1):  # of its own task, not of the one before
                await asyncio.sleep(0.01)
        return await echo(request)

    async with served(slow_and_quick) as (_, port), connected(port) as (reader, writer):
        for _ in range(2):  # the second time the heads are known
            paths = ("/a", "/slow", "/b", "/slow", "/slow", "/c")
            writer.write(b"".join(asking(b"xy", path=path) for path in paths))
            assert [await answered(reader) for _ in paths] == [(200, path.encode() + b" xy") for path in paths]


async def test_where_packets_end_changes_nothing() -> None:
    request = asking(b"0123456789")
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in (len(request), 1, 4, request.index(b"\r\n\r\n") + 2, len(request) - 10, len(request) - 1):
            writer.write(request[:cut])
            await asyncio.sleep(0.005)  # a packet of its own; together they are the case above
            writer.write(request[cut:])
            assert await answered(reader) == (200, b"/a 0123456789")
        for byte in request:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await answered(reader))[0] == 200


class Heard:
    """What a parser tells, as one list."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, bytes, dict[str, str]]] = []

    def begun(self, head: Head) -> None:
        self.told.append((head.method, head.path, b"", dict(head.headers)))

    def came(self, chunk: bytes) -> None:
        method, path, body, headers = self.told.pop()
        self.told.append((method, path, body + chunk, headers))

    def ended(self) -> None:
        return


_REQUESTS = (
    asking(b"ab"),
    asking(b"", path="/none"),
    asking(b"abc", "X: 1"),
    b"GET /x%20y?q=1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nT: t\r\n\r\n",
    b"POST /f HTTP/1.1\r\nContent-Length: 2\r\nX: a\r\n b\r\n\r\nab",
    b"POST /u HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab",
    b"POST /n HTTP/1.1\nContent-Length: 2\n\nab",
)


@given(st.lists(st.sampled_from(_REQUESTS), min_size=1, max_size=6), st.lists(st.integers(1, 400), max_size=8))
def test_a_known_head_says_what_a_parsed_one_does(requests: list[bytes], cuts: list[int]) -> None:
    """One request after the other, each as a packet, against all of them as a stream that is cut anywhere."""
    said: list[object] = []
    for packets in (requests, pieces(b"".join(requests), cuts)):
        heard = Heard()
        parser = RequestParser(heard)
        try:
            for packet in packets:
                parser.feed(packet)
            said.append(heard.told)
        except NoRequestError as error:
            said.append(error.status)
    assert said[0] == said[1]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    found, at = [], 0
    for size in cuts:
        found.append(data[at : at + size])
        at += size
    return [piece for piece in (*found, data[at:]) if piece]


async def test_more_ahead_than_may_wait_ends_the_connection_after_the_answers() -> None:
    limit = http_bounds.PIPELINE_LIMIT
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"x") * (limit + 5))
        statuses = [(await answered(reader))[0] for _ in range(limit + 2)]
        assert statuses == [200] * (limit + 1) + [400]
        assert await reader.read() == b""


async def test_what_is_no_request_is_refused_after_the_answers_before_it() -> None:
    gate = Gate()
    async with served(gate) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"x") + b"nonsense\r\n\r\n")
        await until(lambda: gate.held == 1)
        gate.opened.set()
        assert await answered(reader) == (200, b"/a")
        assert (await answered(reader))[0] == 400
        assert await reader.read() == b""


async def test_a_body_that_goes_wrong_is_refused_and_told_to_who_waits_for_it() -> None:
    gate = Gate()
    async with served(gate) as (_, port), connected(port) as (reader, writer):
        writer.write(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n")
        await until(lambda: gate.held == 1)
        writer.write(b"anonsense")
        assert (await answered(reader))[0] == 400
        assert gate.lost == 1


async def test_who_leaves_in_the_middle_is_noticed() -> None:
    gate = Gate()
    async with served(gate) as (server, port), connected(port) as (_, writer):
        writer.write(asking(b"x" * 200_000)[:-1])
        await until(lambda: gate.held == 1)
        writer.transport.abort()
        await until(lambda: gate.lost == 1)
        await until(lambda: not server._connections and not server._tasks)


async def test_the_last_request_of_a_connection() -> None:
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"xy", "Connection: close") + b"what comes after it counts for nothing")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head
        assert await reader.read() == b"/a xy"


async def test_who_asks_for_another_protocol_is_answered_in_this_one() -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    chunked = b"POST /c HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(echo) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"xy", *upgrade) + chunked + b"2\r\nab\r\n0\r\n\r\n" + asking(b"", *upgrade) + asking(b"z"))
        assert [await answered(reader) for _ in range(4)] == [
            (200, said) for said in (b"/a xy", b"/c ab", b"/a ", b"/a z")
        ]
        request = asking(b"xy" * 100, *upgrade)
        for cut in (30, request.index(b"\r\n\r\n") + 4, len(request) - 100):
            writer.write(request[:cut])
            await asyncio.sleep(0.005)  # a packet of its own
            writer.write(request[cut:])
            assert await answered(reader) == (200, b"/a " + b"xy" * 100)


async def test_an_answer_before_the_end_of_the_body_is_not_lost_to_a_reset() -> None:
    async def refuse(_request: Request) -> Reply:
        return Reply(413, {}, b"too much")

    async with served(refuse) as (_, port), connected(port) as (reader, writer):
        writer.write(asking(b"x" * 500_000, "Connection: close"))
        assert await answered(reader) == (413, b"too much")
        assert await reader.read() == b""
    async with served(refuse) as (_, port), connected(port) as (reader, writer):
        for _ in range(2):  # and where it stays open, the next one is read from its beginning
            writer.write(asking(b"x" * 500_000))
            assert await answered(reader) == (413, b"too much")


async def test_who_asks_before_it_sends_is_told_to_or_answered() -> None:
    async def by_path(request: Request) -> Reply:
        return Reply(413, {}, b"") if request.head.path == "/no" else await echo(request)

    expecting = asking(b"xy", "Expect: 100-continue")[:-2]
    async with served(by_path) as (_, port), connected(port) as (reader, writer):
        for _ in range(2):
            writer.write(expecting)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"xy")
            assert await answered(reader) == (200, b"/a xy")
        writer.write(expecting.replace(b"/a", b"/no"))
        answer = await reader.read()  # nobody knows whether the body still comes
        assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer


async def test_who_does_not_read_holds_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bounds, "WRITE_TIMEOUT_S", SHORT_S)

    async def large(_request: Request) -> Reply:
        return Reply(200, {}, bytes(1_000_000))

    async with served(large) as (server, port):
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            found.connect(("127.0.0.1", port))
            found.sendall(asking(b"x") * 10)
            await until(lambda: len(server._connections) == 1)
            (connection,) = server._connections
            await until(lambda: connection._transport.get_write_buffer_size() > 0)
            assert connection._transport.get_write_buffer_size() < 3_000_000
            await until(lambda: not server._connections)  # it had its time


@pytest.mark.parametrize("sent", [b"", b"POST /a HT", asking(b"x") + b"\r\n", asking(b"x", path="/early")[:-1]])
async def test_idle_and_unfinished_connections_end(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bounds, "HEAD_TIMEOUT_S", SHORT_S)
    monkeypatch.setattr(http_connection, "KEEP_ALIVE_S", SHORT_S)

    async def early(request: Request) -> Reply:
        return Reply(404, {}, b"") if request.head.path == "/early" else await echo(request)

    async with served(early) as (_, port), connected(port) as (reader, writer):
        writer.write(sent)
        await reader.read()


async def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_bounds, "HEAD_TIMEOUT_S", SHORT_S)
    monkeypatch.setattr(http_connection, "KEEP_ALIVE_S", SHORT_S)
    gate = Gate()
    request = asking(b"x")
    async with served(gate) as (_, port), connected(port) as (reader, writer):
        writer.write(request[:20])  # its clock has begun
        await asyncio.sleep(0.005)
        writer.write(request[20:])
        await until(lambda: gate.held == 1)
        await asyncio.sleep(2 * SHORT_S)
        gate.opened.set()
        assert (await answered(reader))[0] == 200


async def test_of_too_many_connections_the_oldest_that_asks_nothing_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "connections_limit", lambda: 3)
    gate = Gate()
    async with served(gate) as (server, port), contextlib.AsyncExitStack() as held:
        asker, oldest, younger = [await held.enter_async_context(connected(port)) for _ in range(3)]
        asker[1].write(asking(b"x"))
        await until(lambda: gate.held == 1 and len(server._connections) == 3)
        await held.enter_async_context(connected(port))
        with contextlib.suppress(ConnectionResetError):
            assert await oldest[0].read() == b""
        gate.opened.set()
        for reader, writer in (asker, younger):
            if writer is not asker[1]:
                writer.write(asking(b"x"))
            assert (await answered(reader))[0] == 200


async def test_who_is_let_in_while_the_server_ends_is_not_waited_for() -> None:
    async with served(echo) as (server, port), connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        await answered(reader)
        server.is_ending = True
        late = Connection(server)
        transport = _Transport()
        late.connection_made(transport)
        assert transport.is_closing()
        late.connection_lost(None)


class _Transport(asyncio.Transport):
    """Of a connection that nobody is at the other end of."""

    _closed = False

    def close(self) -> None:
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed


async def test_a_server_ends_with_the_answers_that_are_due() -> None:
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


async def test_what_outlives_the_end_is_told_to_come_again() -> None:
    gate = Gate()
    async with served(gate) as (server, port), connected(port) as (reader, writer):
        writer.write(asking(b"x"))
        await until(lambda: gate.held == 1)
        await server.stop(0)
        status, said = await answered(reader)
        assert status == 503 and b"shutting down" in said


async def test_a_fault_of_ours_is_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_request: Request) -> Reply:
        raise ZeroDivisionError

    async with served(fail) as (_, port), connected(port) as (reader, writer):
        for _ in range(2):
            writer.write(asking(b"x"))
            status, said = await answered(reader)
            assert status == 500 and b"failed unexpectedly" in said
    assert "ZeroDivisionError" in caplog.text


class Pieces:
    """A stream of as many pieces as are asked for, that tells when it was closed."""

    def __init__(self) -> None:
        self.closed = 0
        self.more = asyncio.Event()

    async def __call__(self, _request: Request) -> Streamed:
        await in_task()
        held = contextlib.ExitStack()
        held.callback(self._close)
        return Streamed({"Content-Type": "text/plain"}, self._pieces(), held)

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
        writer.write(b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nGET /a HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert (await reader.read()).endswith(b"connection: close\r\n\r\nonetwo")
        assert pieces.closed == 4


async def test_who_leaves_a_stream_gives_back_what_it_held() -> None:
    pieces = Pieces()
    async with served(pieces) as (_, port), connected(port) as (reader, writer):
        writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"one")
        writer.transport.abort()
        await until(lambda: pieces.closed == 1)


async def test_what_an_idle_connection_keeps_is_no_body() -> None:
    async with served(echo) as (server, port), connected(port) as (reader, writer):
        writer.write(asking(b"x" * 50_000))
        await answered(reader)
        (connection,) = server._connections
        assert connection._coming is not None
        assert connection._coming._chunks == []


async def test_a_request_s_trace_is_read_whether_its_head_is_known_or_not() -> None:
    seen: list[tuple[str, str] | None] = []

    async def note(request: Request) -> Reply:
        trace = request.head.trace
        seen.append(None if trace is None else (trace.parent_id, trace.state))
        assert "traceparent" not in request.headers
        return await echo(request)

    def traced(number: int, state: str) -> bytes:
        return asking(b"xy", f"traceparent: 00-{7:032x}-{number:016x}-01", f"tracestate: {state}", "X: y")

    async with served(note) as (_, port), connected(port) as (reader, writer):
        for number in (1, 2, 3):
            for request in (traced(number, "a=1"), asking(b"xy", "tracestate: a=1", "X: y"), asking(b"xy")):
                writer.write(request)
                assert await answered(reader) == (200, b"/a xy")
        writer.write(traced(4, "a=1") + traced(5, "A") + traced(0, "a=1"))
        assert [await answered(reader) for _ in range(3)] == [(200, b"/a xy")] * 3
    assert seen == [
        *(each for number in (1, 2, 3) for each in ((f"{number:016x}", "a=1"), None, None)),
        (f"{4:016x}", "a=1"),
        (f"{5:016x}", ""),
        None,
    ]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=8), st.integers(1, 400))
def test_a_trace_is_the_same_wherever_packets_end(requests: list[tuple[bool, int]], size_bytes: int) -> None:
    found: list[tuple[int, bytes]] = []

    class Noting:
        def begun(self, head: Head) -> None:
            found.append((0 if head.trace is None else int(head.trace.parent_id, 16), b""))

        def came(self, chunk: bytes) -> None:
            found[-1] = (found[-1][0], found[-1][1] + chunk)

        def ended(self) -> None: ...

    sent = [
        asking(b"body", *([f"traceparent: 00-{7:032x}-{number:016x}-00"] if traced else []), "X: y")
        for traced, number in requests
    ]
    for packets in (sent, [b"".join(sent)[at : at + size_bytes] for at in range(0, sum(map(len, sent)), size_bytes)]):
        found.clear()
        parser = RequestParser(Noting())
        for packet in packets:
            parser.feed(packet)
        assert found == [(number if traced else 0, b"body") for traced, number in requests]
