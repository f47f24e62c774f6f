"""Clients that never finish asking lose their connection, on both tiers; those that wait for an answer keep it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from support.agent import edge_settings, serving_agent
from support.gateway import gated_gateway, serving
from support.logs import captured_lines
from support.raw_http import connected
from support.waiting import until

from firstline_core.errors import QueueFullError
from firstline_core.fleet.profiles import PROFILES_PATH
from firstline_core.fleet.registry import BLOBS_PATH
from firstline_core.fleet.rest import BRAKE_PATH
from firstline_core.protocol import http
from firstline_core.protocol.enrolment import ENROL_PATH
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.http_server import ServerLimits

TIMEOUT_S = 0.2
V2 = "/v2/models/digits/infer"


SHORT = ServerLimits(head_s=TIMEOUT_S)


@asynccontextmanager
async def tier(name: str, folder: Path, limits: ServerLimits = SHORT) -> AsyncIterator[str]:
    if name == "gateway":
        async with serving(gated_gateway(folder)[0], limits=limits) as url:
            yield url
    else:
        async with serving_agent(edge_settings(folder), limits=limits) as (_, url):
            yield url


BODY = b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}'
HEAD = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"


SLOW = {
    "a method that never ends": (b"", b"a"),
    "a header that never ends": (HEAD + b"X: ", b"a"),
    "a second request": (HEAD + b"\r\n" + HEAD, b"X: a\r\n"),
    "empty lines": (HEAD + b"\r\n", b"\r\n"),
    "refused": (b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n", b"a"),
}


async def cut_off(url: str, before: bytes, drip: bytes) -> None:
    """Sends what comes first, and then one drip after the other until the connection ends."""
    async with connected(url) as (reader, writer):
        writer.write(before)

        async def trickle() -> None:
            while True:
                await asyncio.sleep(TIMEOUT_S / 8)  # the pace is what is tested: each byte comes well within the time
                writer.write(drip)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                while await reader.read(65_536):
                    pass
        trickling.cancel()


@pytest.mark.parametrize("name", ["agent", "gateway"])
async def test_slow_requests_are_cut_off(name: str, tmp_path: Path) -> None:
    async with tier(name, tmp_path) as url:
        ends = await asyncio.gather(*(cut_off(url, *each) for each in SLOW.values()), return_exceptions=True)
    assert dict(zip(SLOW, ends, strict=True)) == dict.fromkeys(SLOW)


async def test_head_timeout_does_not_limit_the_answer(tmp_path: Path) -> None:
    gateway, executor = gated_gateway(tmp_path)
    async with serving(gateway, limits=SHORT) as url, httpx.AsyncClient(base_url=url) as client:
        task = asyncio.create_task(client.post(V2, content=BODY))
        await until(lambda: executor.held)
        await asyncio.sleep(2 * TIMEOUT_S)  # longer than a head may take
        executor.release()
        assert (await task).status_code == 200


async def test_slow_body_is_cut_off_and_others_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "GRACE_S", TIMEOUT_S)
    gateway, executor = gated_gateway(tmp_path)
    async with serving(gateway) as url, connected(url) as (reader, writer), httpx.AsyncClient(base_url=url) as client:
        writer.write(f"POST {V2} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n".encode() + b"a" * 100)
        task = asyncio.create_task(client.post(V2, content=BODY))
        async with asyncio.timeout(10):
            await until(lambda: executor.held)
            executor.release()
            assert (await task).status_code == 200
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 504")
    assert gateway.bodies.held_bytes == 0


@pytest.mark.parametrize(
    ("name", "path"),
    [("agent", V2), pytest.param("gateway", ENROL_PATH, id="a stranger, who could hold any number of connections")],
)
async def test_slow_body_is_cut_off(name: str, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http, "GRACE_S", TIMEOUT_S)
    async with tier(name, tmp_path, ServerLimits()) as url, connected(url) as (reader, writer):
        writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n{{".encode())
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 504")


def test_one_client_may_not_take_all_room_for_bodies() -> None:
    budget = BodyBudget(100, fair=True)

    def take(stack: ExitStack, principal: str, *sizes: int) -> None:
        take_bytes = stack.enter_context(budget.share(principal))
        for size in sizes:
            take_bytes(size)

    with ExitStack() as stack:
        take(stack, "greedy", 30, 20)
        with pytest.raises(QueueFullError, match="hold 50 bytes, and 50 are free"):
            take(stack, "greedy", 1)
        take(stack, "polite", 25)
        with pytest.raises(QueueFullError, match="hold 25 bytes, and 25 are free"):
            take(stack, "polite", 1)
    with ExitStack() as stack:
        take(stack, "greedy", 50)  # all was given back


@pytest.mark.parametrize("name", ["agent", "gateway"])
async def test_unread_answers_end_the_connection(name: str, tmp_path: Path) -> None:
    async with tier(name, tmp_path, ServerLimits(head_s=TIMEOUT_S, write_s=TIMEOUT_S)) as url:
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            found.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(found, ("127.0.0.1", int(url.rpartition(":")[2])))
            ended = False
            async with asyncio.timeout(20):
                while not ended:  # asks for large answers and never reads one
                    try:
                        async with asyncio.timeout(TIMEOUT_S):
                            await loop.sock_sendall(
                                found, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16
                            )
                    except TimeoutError:
                        continue
                    except OSError:
                        ended = True


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", ENROL_PATH),
        ("PUT", BRAKE_PATH),
        ("PUT", f"{BLOBS_PATH}/{'a' * 64}"),
        ("PUT", f"{PROFILES_PATH}/digits/versions/1/machines/cam"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/digits/load"),
    ],
)
async def test_disconnect_within_a_body_is_not_an_error(tmp_path: Path, method: str, path: str) -> None:
    gateway, _ = gated_gateway(tmp_path, registry__blobs=str(tmp_path / "blobs"))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as (_, writer):
            writer.write(head + b"{")
            await writer.drain()
            async with httpx.AsyncClient(base_url=url) as client:  # by then the other's head was read
                assert (await client.get("/v2/health/live")).status_code == 200
    failed = [line for line in lines if line.get("level") == "error" or "exception" in line]
    assert failed == []


REFUSED = f"POST {V2} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"


async def all_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(5):
        return await reader.read()


@pytest.mark.parametrize(
    "head", [REFUSED + "Connection: close\r\n", REFUSED.replace("1.1", "1.0")], ids=["asked to close", "HTTP/1.0"]
)
async def test_refusal_closes_the_connection_immediately(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = gated_gateway(tmp_path)
    monkeypatch.setattr(gateway.overload, "refuses", lambda *_: True)
    async with serving(gateway) as url, connected(url) as (reader, writer):
        writer.write(head.encode() + b"\r\nab")
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in answer
        writer.write(b"c")  # the rest of what it was to send
        assert b"queue_full" in await all_of(reader)


async def test_refused_connection_stays_open_while_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, _ = gated_gateway(tmp_path)
    monkeypatch.setattr(gateway.overload, "refuses", lambda *_: True)
    async with serving(gateway, limits=SHORT) as url, connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(REFUSED.encode() + b"\r\nabc")
            async with asyncio.timeout(5):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
                await reader.readuntil(b"}")
            await asyncio.sleep(2 * TIMEOUT_S)  # longer than a head may take
        writer.write(REFUSED.encode()[:20])
        assert await all_of(reader) == b""


@pytest.mark.parametrize("name", ["agent", "gateway"])
async def test_pending_connections_beyond_the_limit_push_the_oldest_out(name: str, tmp_path: Path) -> None:
    async with tier(name, tmp_path, ServerLimits(pending=3)) as url, AsyncExitStack() as stack:
        active = await stack.enter_async_context(connected(url))
        active[1].write(HEAD + b"\r\n")
        async with asyncio.timeout(5):
            assert await active[0].readuntil(b"\r\n\r\n")
        silent = [await stack.enter_async_context(connected(url)) for _ in range(4)]
        with suppress(ConnectionResetError):
            assert await all_of(silent[0][0]) == b""
        for reader, writer in (active, *silent[1:]):
            writer.write(HEAD + b"\r\n")
            async with asyncio.timeout(5):
                assert b"200" in await reader.readuntil(b"\r\n\r\n")
