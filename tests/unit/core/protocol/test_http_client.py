"""The client, over httpx's own transport and over the gateway's, against servers on loopback with scripted answers."""

import asyncio
import contextlib
import inspect
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvloop
from httpcore import _synchronization
from support.waiting import until

from firstline_core.errors import ConfigError, LinkDownError, LinkError, ProtocolError, RemoteTimeoutError
from firstline_core.protocol import http_client
from firstline_core.protocol.http import StaleConnectionError
from firstline_core.protocol.http_client import (
    RECOVERY_S,
    SHORTEST_IDLE_S,
    ClientSettings,
    HttpClient,
    IdleLimit,
    open_async_client,
    open_client,
    untrusted,
)
from firstline_gateway.executors.oip.http_transport import PooledTransport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kind: a\r\n\r\nhi"
Reply = Callable[[int, int], bytes | None]  # number of the connection and of the request on it; None closes
Connect = Callable[[str], HttpClient]


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("self-signed certificate in certificate chain", "authorities.pem, with --ca."),
        ("Hostname mismatch, certificate is not valid for 'b'.", "or add this one to tls.hosts of the gateway."),
        ("IP address mismatch, certificate is not valid for '::1'.", "or add this one to tls.hosts of the gateway."),
        ("certificate has expired", "correct the clock of this machine, or renew the certificate."),
        ("certificate is not yet valid", "correct the clock of this machine, or renew the certificate."),
    ],
)
def test_the_remedy_of_an_untrusted_certificate_fits_its_fault(fault: str, remedy: str) -> None:
    error = httpx.ConnectError(f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {fault} (_ssl.c:1006)")
    sentence = untrusted(error, "https://b", "with --ca")
    assert sentence.startswith("The certificate of https://b is not trusted (") and sentence.endswith(remedy)


def connecting(over: str = "httpx", *, doubts_idle: bool = False, **settings: Any) -> Connect:
    def connect(url: str) -> HttpClient:
        transport = PooledTransport(tls=False) if over == "aiohttp" else None
        client = ClientSettings(url, headers={"Authorization": "Bearer secret"}, tls=False, **settings)
        return HttpClient(client, limit_bytes=1000, transport=transport, doubts_idle=doubts_idle)

    return connect


over_httpx, over_aiohttp = connecting(), connecting("aiohttp")


@pytest.fixture(params=[over_httpx, over_aiohttp], ids=["httpx", "aiohttp"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return request.param


class Server:
    def __init__(self, reply: Reply, ends_after: int | None = None) -> None:
        self._reply = reply
        self._ends_after = ends_after
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection, count = self.connections, 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                head = head.lower()  # httpx-aiohttp sends the names of headers in lower case
                (length,) = (line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length"))
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(length)))
                answer = self._reply(connection, count)
                count += 1
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
                if count == self._ends_after:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()


@asynccontextmanager
async def serving(
    connect: Connect, reply: Reply, *, ends_after: int | None = None
) -> AsyncIterator[tuple[Server, HttpClient]]:
    server = Server(reply, ends_after)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = connect(f"http://127.0.0.1:{port}/behind/")
    try:
        yield server, client
    finally:
        await client.close()
        listening.close()
        await listening.wait_closed()
        await until(lambda: server.ended >= server.connections)


async def post(client: HttpClient, body: bytes = b"body", timeout_s: float = 5) -> tuple[int, bytes]:
    reply = await client.exchange("POST", "/v2/x", {"Content-Type": "text/plain"}, body, timeout_s)
    return reply.status, reply.body


def test_the_client_works_on_uvloop(connect: Connect) -> None:
    async def twice() -> None:
        async with serving(connect, lambda *_: OK) as (server, client):
            assert [await post(client) for _ in range(2)] == [(200, b"hi")] * 2
            assert server.connections == 1

    uvloop.run(twice())


async def test_requests_share_a_connection_and_send_the_required_headers(connect: Connect) -> None:
    async with serving(connect, lambda *_: OK) as (server, client):
        for _ in range(3):
            assert await post(client) == (200, b"hi")
        assert (await client.exchange("GET", "/v2", {}, b"", 5)).headers["x-kind"] == "a"
    assert server.connections == 1
    head = server.heads[0].decode()
    assert head.startswith("post /behind/v2/x http/1.1\r\nhost: 127.0.0.1:")
    assert "\r\nauthorization: bearer secret\r\n" in head
    assert "\r\ncontent-type: text/plain\r\n" in head
    assert server.bodies == [b"body"] * 3 + [b""]


async def test_as_many_connections_as_requests_at_the_same_moment(connect: Connect) -> None:
    async with serving(connect, lambda *_: OK) as (server, client):
        assert await asyncio.gather(*(post(client) for _ in range(5))) == [(200, b"hi")] * 5
        await post(client)
        assert server.connections == 5


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
    ],
)
async def test_every_form_that_http_allows_is_decoded(connect: Connect, answer: bytes) -> None:
    async with serving(connect, lambda *_: answer) as (_, client):
        for _ in range(2):
            assert await post(client) == (200, b"hi")


async def test_an_idle_connection_that_was_closed_is_replaced(connect: Connect) -> None:
    async with serving(connect, lambda connection, count: None if connection == 1 and count else OK) as (
        server,
        client,
    ):
        assert await post(client) == (200, b"hi")
        assert await post(client) == (200, b"hi")
        assert server.connections == 2


async def test_a_closed_fresh_connection_is_a_link_down(connect: Connect) -> None:
    async with serving(connect, lambda *_: None) as (_, client):
        with pytest.raises(LinkDownError, match="closed the connection"):
            await post(client)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://\u4f8b.invalid:9"])  # sent in its ASCII form
async def test_a_server_that_cannot_be_reached_is_a_link_error(connect: Connect, url: str) -> None:
    client = connect(url)
    with pytest.raises(LinkDownError, match="it cannot be reached"):
        await post(client)
    await client.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SMTP ready\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://xn--/\r\nContent-Length: 0\r\n\r\n", "Malformed A-label"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, "more than 1000 bytes"),
    ],
)
async def test_a_wrong_answer_does_not_spoil_the_next(connect: Connect, answer: bytes, why: str) -> None:
    async with serving(connect, lambda connection, count: OK if connection > 1 or count else answer) as (_, client):
        with pytest.raises(ProtocolError, match=why):
            await post(client)
        assert await post(client) == (200, b"hi")


async def test_the_head_of_an_incomplete_answer_is_not_shown(connect: Connect) -> None:
    cut = b"HTTP/1.1 200 OK\r\nX-Secret: hidden\r\nConte"
    async with serving(connect, lambda *_: cut, ends_after=1) as (_, client):
        with pytest.raises(LinkError) as raised:
            await post(client)
    assert "hidden" not in raised.value.message


async def test_an_incomplete_answer_is_not_retried(connect: Connect) -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhi"

    async with serving(connect, lambda connection, count: cut if connection == 1 and count else OK) as (server, client):
        assert await post(client) == (200, b"hi")
        with pytest.raises(RemoteTimeoutError, match=r"within 0\.1 s"):
            await post(client, timeout_s=0.1)
        assert len(server.heads) == 2


@pytest.mark.parametrize("cut", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", b"SMTP ready\r\n\r\n"])
async def test_a_partly_answered_request_is_not_repeated(connect: Connect, cut: bytes) -> None:
    async with serving(connect, lambda _, count: cut if count else OK, ends_after=2) as (server, client):
        assert await post(client) == (200, b"hi")
        with pytest.raises(LinkError):
            await post(client)
        assert len(server.heads) == 2


async def test_a_request_is_sent_again_only_once(connect: Connect) -> None:
    async with serving(connect, lambda _, count: None if count else OK) as (server, client):
        assert await asyncio.gather(*(post(client) for _ in range(4))) == [(200, b"hi")] * 4
        server.heads.clear()
        with contextlib.suppress(LinkDownError):
            await post(client)
        assert len(server.heads) <= 2


async def test_a_late_answer_is_not_used_for_another_request(connect: Connect) -> None:
    async with serving(connect, lambda connection, _: b"" if connection == 1 else OK) as (server, client):
        with pytest.raises(RemoteTimeoutError, match=r"within 0\.05 s"):
            await post(client, timeout_s=0.05)
        assert await post(client) == (200, b"hi")
        assert server.connections == 2


async def test_a_cancelled_request_ends_its_connection(connect: Connect) -> None:
    async with serving(connect, lambda *_: b"") as (server, client):
        task = asyncio.create_task(post(client))
        await until(lambda: server.bodies)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.ended)


async def test_a_large_body_arrives_whole(connect: Connect) -> None:
    async with serving(connect, lambda *_: OK) as (server, client):
        assert await post(client, b"x" * 3_000_000) == (200, b"hi")
        assert len(server.bodies[0]) == 3_000_000


@pytest.mark.parametrize(
    "more",
    [OK.replace(b"hi", b"no"), OK[:-1], b"HTTP/1.1 200 OK\r\nX-Kind: b\r\n", b"HTTP/1.1 200", b"garbage"],
    ids=["an answer", "half an answer", "half a head", "a line", "no HTTP"],
)
@pytest.mark.parametrize("later", [False, True], ids=["with it", "after it"])
async def test_unrequested_bytes_are_not_the_next_answer(connect: Connect, more: bytes, later: bool) -> None:
    if connect is over_httpx and not later and more.startswith(OK[:-2]):
        pytest.skip("h11 keeps bytes that came with an answer; the device compares the answer's id")
    unasked = asyncio.Event()
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await reader.readuntil(b"body")
            if connections == 1:
                writer.write(OK if later else OK + more)
                if later:
                    await unasked.wait()
                    writer.write(more)
                    await writer.drain()
                    unasked.clear()
                await reader.readuntil(b"body")
            writer.write(OK.replace(b"hi", b"go"))
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            ended.set()

    ended = asyncio.Event()
    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = connect(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    try:
        with contextlib.suppress(LinkError):
            assert await post(client) == (200, b"hi")
        if later:
            unasked.set()
            await until(lambda: not unasked.is_set())
            await asyncio.sleep(0.02)
        with contextlib.suppress(LinkError):
            assert await post(client, timeout_s=1) == (200, b"go")
    finally:
        await client.close()
        async with asyncio.timeout(5):
            await ended.wait()
        listening.close()
        await listening.wait_closed()


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_CHUNKED + b"2\r\nhi\r\n0\r\nX-Long: " + b"x" * 200_000, "does not speak"),
        (_CHUNKED + b"2;" + b"x" * 200_000, "does not speak|did not answer within"),  # aiohttp reads it without end
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "does not speak"),
    ],
    ids=["an endless trailer", "an endless extension of a chunk", "another protocol"],
)
async def test_an_answer_s_ornaments_are_bounded(connect: Connect, answer: bytes, why: str) -> None:
    async with serving(connect, lambda *_: answer) as (_, client):
        with pytest.raises(LinkError, match=why):
            await post(client, timeout_s=0.5)


async def test_an_answer_that_ends_with_its_connection_is_whole(connect: Connect) -> None:
    async with serving(connect, lambda *_: b"HTTP/1.0 200 OK\r\n\r\nhi", ends_after=1) as (_, client):
        assert await post(client) == (200, b"hi")


async def test_a_timeout_discards_every_idle_connection(connect: Connect) -> None:
    silent = False

    async with serving(connect, lambda connection, _: b"" if silent and connection <= 3 else OK) as (server, client):
        await asyncio.gather(*(post(client) for _ in range(3)))
        assert server.connections == 3
        silent = True  # as behind a network that forgot its connections
        with pytest.raises(RemoteTimeoutError):
            await post(client, timeout_s=0.05)
        assert await asyncio.gather(*(post(client) for _ in range(3))) == [(200, b"hi")] * 3
        assert server.connections == 6


async def test_an_idle_connection_is_closed() -> None:
    async with serving(connecting(idle_s=0.05), lambda *_: OK) as (server, client), asyncio.timeout(5):
        await post(client)
        await until(lambda: server.ended)
        assert await post(client) == (200, b"hi")


@pytest.mark.parametrize("over", ["httpx", "aiohttp"])
async def test_connections_that_a_network_forgets_are_not_reused(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network forgets a connection that was idle, as a NAT does, and the client gives one only half of its time."""
    monkeypatch.setattr(http_client, "SHORTEST_IDLE_S", 0.02)

    doubting = connecting(over, doubts_idle=True)
    async with serving(doubting, lambda _, count: b"" if count else OK) as (server, client):
        began_s = time.monotonic()
        await post(client)
        await asyncio.sleep(0.06)
        started_s = time.monotonic()
        with pytest.raises(StaleConnectionError, match=r"no byte within 1 s over a connection that was idle for 0\."):
            await post(client, timeout_s=2)
        assert time.monotonic() - started_s < 1.9
        for used in range(2, 5):  # the client has learned how soon they are forgotten
            assert await post(client, timeout_s=1) == (200, b"hi")
            assert server.connections == used
            await asyncio.sleep(started_s - began_s)  # no shorter than before


async def test_a_long_upload_does_not_count_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "SHORTEST_IDLE_S", 0.02)

    doubting = connecting(doubts_idle=True)
    async with serving(doubting, lambda _, count: b"" if count else OK) as (_, client):
        await post(client)
        await asyncio.sleep(0.06)
        with pytest.raises(RemoteTimeoutError, match=r"within 0\.2 s") as raised:
            await post(client, bytes(20_000), timeout_s=0.2)
        assert type(raised.value) is RemoteTimeoutError


async def test_a_slow_answer_over_a_new_connection_has_all_the_time() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        await asyncio.sleep(1.1)
        writer.write(OK)
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = connecting(doubts_idle=True)(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await post(client, timeout_s=2) == (200, b"hi")
        await client.close()
        await asyncio.wait_for(ended.wait(), 5)


class TestIdleLimit:
    def test_only_unproven_idle_times_are_doubted(self) -> None:
        limit = IdleLimit(15)
        assert [limit.doubts(idle_s) for idle_s in (0.4, 3, 10)] == [False, True, True]
        limit.answered(5, new=False)
        assert [limit.doubts(idle_s) for idle_s in (0.4, 3, 10)] == [False, False, True]

    def test_it_becomes_half_of_the_time_after_which_a_connection_was_forgotten(self) -> None:
        limit = IdleLimit(15)
        limit.silent(2.5)
        limit.answered(0, new=True)
        assert limit.limit_s == 1.25
        limit.silent(0.6)
        limit.answered(0, new=True)
        assert limit.limit_s == 0.5

    def test_it_recovers_step_by_step_without_forgotten_connections(self) -> None:
        now_s = 0.0
        limit = IdleLimit(15, lambda: now_s)
        for _ in range(5):
            limit.silent(limit.limit_s)
            limit.answered(0.0, new=True)
        assert limit.limit_s == SHORTEST_IDLE_S
        limits = []
        for _ in range(6):
            now_s += RECOVERY_S - 1
            limit.answered(0.1, new=False)
            before = limit.limit_s
            now_s += 1
            limit.answered(0.1, new=True)
            limits.append((before, limit.limit_s))
        assert limits == [(0.5, 1), (1, 2), (2, 4), (4, 8), (8, 15), (15, 15)]
        assert limit.doubts(14)

    def test_a_server_that_answers_over_a_kept_connection_was_only_slow(self) -> None:
        limit = IdleLimit(15)
        limit.silent(2.5)
        limit.answered(0.1, new=False)
        limit.answered(0, new=True)
        assert limit.limit_s == 15


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_timeout_of_a_plain_client_discards_every_idle_connection(blocking: bool) -> None:
    silent = False

    async with serving(over_httpx, lambda connection, _: b"" if silent and connection <= 3 else OK) as (server, unused):
        settings = ClientSettings(unused.url, timeout=0.5)
        with open_client(settings) as client:
            async with open_async_client(settings) as waiting:

                async def post_once() -> bytes:
                    if blocking:
                        return (await asyncio.to_thread(client.post, "/v2/x", content=b"body")).content
                    return (await waiting.post("/v2/x", content=b"body")).content

                while server.connections < 3:
                    await asyncio.gather(*(post_once() for _ in range(3)))
                silent = True
                with pytest.raises(httpx.ReadTimeout):
                    await post_once()
                assert await asyncio.gather(*(post_once() for _ in range(3))) == [b"hi"] * 3


def test_kept_connections_probe_the_far_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(OK)

        thread = threading.Thread(target=answer)
        thread.start()
        settings = ClientSettings(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=5)
        with open_client(settings) as client, client.stream("GET", "/") as response:
            connection = response.extensions["network_stream"].get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 30
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        thread.join()


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_an_impossible_host_name_is_refused_at_once(connect: Connect, host: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        connect(f"http://{host}:9")


def test_httpcore_imports_sniffio_in_each_request() -> None:
    """Without the package the import fails each time, which takes a third of a request's processor time."""
    assert "import sniffio" in inspect.getsource(_synchronization.current_async_library)
