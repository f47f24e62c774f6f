"""Requests for inference as bytes on one connection: cut anywhere, sent ahead, given up, and left unread."""

import asyncio
import gc
import logging
import re
import socket
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.databases import sqlite_store
from support.gateway import GatedExecutor, gated_gateway, serving, serving_gateway
from support.images import grey, images
from support.inference import digits_request
from support.keys import create_key
from support.raw_http import connected, next_reply
from support.waiting import until

from firstline_core.protocol.http import HEADER_LENGTH
from firstline_core.protocol.http_server import Connection, ServerLimits
from firstline_core.protocol.oip import encode_request
from firstline_gateway.app import Gateway

# Ids, times, lengths, and the padding that follows from them.
_OWN_VALUES = re.compile(
    rb'[0-9a-f]{8}-[0-9a-f-]{27}|ms\\?":[0-9.e-]+|date: [^\r]*|Content-Length: \d+|(?<=\}) +', re.I
)

BODY = b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}'


def asking(body: bytes, *lines: str, model: str = "digits") -> bytes:
    head = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


@pytest.fixture
def gated(tmp_path: Path) -> tuple[Gateway, GatedExecutor]:
    return gated_gateway(tmp_path)


def server_ends() -> list[Connection]:
    """The connections that are open, as the server has them."""
    found = [each for each in gc.get_objects() if isinstance(each, Connection)]
    return [each for each in found if each.transport is not None and not each.transport.is_closing()]


def server_end() -> Connection:
    """The one connection that is open."""
    (found,) = server_ends()
    return found


async def releasing(executor: GatedExecutor) -> None:
    while True:
        await until(lambda: executor.held > 0)
        executor.release()


async def test_pipelined_requests_are_answered_in_order(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, connected(url) as (reader, writer):
        running = asyncio.create_task(releasing(executor))
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(2):  # the second time its head is known
            writer.write(asking(BODY) + asking(BODY) + live + asking(b"{", model="other") + asking(BODY))
            found = [await next_reply(reader) for _ in range(5)]
            assert [reply.status for reply in found] == [200, 200, 200, 400, 200]
            assert b"live" in found[2].body
        running.cancel()


@pytest.mark.parametrize("binary", [True, False])
async def test_answers_do_not_depend_on_how_their_requests_arrive(tmp_path: Path, binary: bool) -> None:
    encoded = encode_request(digits_request(images(grey()), binary_output=binary))
    length = [] if encoded.header_length is None else [f"{HEADER_LENGTH}: {encoded.header_length}"]
    key = create_key(sqlite_store(tmp_path), "shop", "application")
    one, unauthorized = (asking(encoded.body, f"Authorization: Bearer {each}", *length) for each in (key, "nobody"))
    cut = one.index(b"\r\n\r\n") + 4
    async with serving_gateway(tmp_path) as (_, url):
        whole = (await answers(url, [one], 1))[0]
        assert whole.startswith(b"HTTP/1.1 200")
        others = [
            *await answers(url, [one] * 4, 4),
            *await answers(url, [one, one[:cut], one[cut:]], 2),
            *await answers(url, [one * 5], 5),
        ]
        assert {without_own_values(each) for each in others} == {without_own_values(whole)}
        refused = [*await answers(url, [unauthorized], 1), *await answers(url, [unauthorized] * 3, 3)]
        assert all(each.startswith(b"HTTP/1.1 401") for each in refused)
        assert len({without_own_values(each) for each in refused}) == 1


async def answers(url: str, packets: Sequence[bytes], count: int) -> list[bytes]:
    """Sends packets one after another on a new connection, and returns `count` answers with their heads."""
    async with connected(url) as (reader, writer):
        for packet in packets:
            writer.write(packet)
            await asyncio.sleep(0.01)  # a packet of its own
        found = [await next_reply(reader) for _ in range(count)]
    return [reply.head + reply.body for reply in found]


def without_own_values(answer: bytes) -> bytes:
    """An answer without its id, times and lengths, and the padding that follows from them."""
    return _OWN_VALUES.sub(b"", answer)


async def test_client_that_leaves_a_kept_connection_returns_its_capacity(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(asking(BODY))
            await until(lambda: executor.held == 1)
            executor.release()
            assert (await next_reply(reader)).status == 200
        writer.write(asking(BODY))
        await until(lambda: executor.held == 1 and gateway.plane.under_way.count == 1)
        writer.close()
        await until(lambda: gateway.plane.under_way.count == 0 and gateway.bodies.held_bytes == 0)
        executor.release()


async def test_closed_connection_cancels_its_requests(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, connected(url) as (reader, writer):
        writer.write(asking(BODY) + asking(BODY))
        await until(lambda: executor.held == 1 and len(server_end().pipeline) == 1)
        tasks = server_end().tasks
        assert tasks
        server_end().abort()
        assert await reader.read() == b""
        await until(lambda: not tasks)
        assert gateway.bodies.held_bytes == 0
        executor.release()


async def test_log_lines_belong_to_their_request(
    gated: tuple[Gateway, GatedExecutor], caplog: pytest.LogCaptureFixture
) -> None:
    gateway, executor = gated
    caplog.set_level(logging.INFO, "firstline_gateway.requests")
    async with serving(gateway) as url, connected(url) as (reader, writer):
        writer.write(asking(BODY) + asking(b"{"))
        await until(lambda: executor.held == 1)
        executor.release()
        assert [(await next_reply(reader))[0] for _ in range(2)] == [200, 400]
    lines = [record.getMessage() for record in caplog.records if record.name == "firstline_gateway.requests"]
    first, second = (re.findall(r"request_id=(\S+)", line) for line in lines)
    assert len(first) == len(second) == 1 and first != second


async def test_refused_expect_100_ends_the_connection(gated: tuple[Gateway, GatedExecutor]) -> None:
    """The rest of the body may still come, so the next request could be taken for it."""
    gateway, _ = gated
    async with serving(gateway) as url, connected(url) as (reader, writer):
        lines = "Host: localhost", "Expect: 100-continue", f"Content-Length: {gateway.plane.limits.body_bytes + 1}"
        writer.write("\r\n".join(["POST /v2/models/digits/infer HTTP/1.1", *lines, "", ""]).encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer.lower()


async def test_disconnect_after_a_large_packet_is_noticed(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    async with serving(gateway) as url, connected(url) as (_, writer):
        writer.write(asking(BODY + b" " * 100_000))
        await until(lambda: executor.held == 1)
        writer.transport.abort()
        await until(lambda: gateway.bodies.held_bytes == 0)
        executor.release()


async def test_idle_connections_hold_no_bodies(gated: tuple[Gateway, GatedExecutor]) -> None:
    gateway, executor = gated
    body = BODY + b" " * 20_000
    async with serving(gateway) as url, connected(url) as (reader, writer):
        running = asyncio.create_task(releasing(executor))
        tracemalloc.start()
        try:
            writer.write(asking(body))
            assert (await next_reply(reader))[0] == 200
            protocol = server_end()
            del protocol
            gc.collect()
            largest = max(trace.size for trace in tracemalloc.take_snapshot().traces)
        finally:
            tracemalloc.stop()
        running.cancel()
    assert largest < len(body)


async def test_unread_refusals_are_bounded(
    gated: tuple[Gateway, GatedExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = gated
    monkeypatch.setattr(gateway.overload, "refuses", lambda *_: True)
    async with serving(gateway, limits=ServerLimits(write_s=0.5)) as url:
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            found.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(found, ("127.0.0.1", int(url.rpartition(":")[2])))
            sending = asyncio.create_task(loop.sock_sendall(found, asking(b"abc") * 100_000))
            await until(lambda: bool(server_ends()))
            (end,) = server_ends()
            largest_bytes = 0
            while not end.transport.is_closing():
                largest_bytes = max(largest_bytes, end.transport.get_write_buffer_size())
                await asyncio.sleep(0.001)
            assert largest_bytes < 1_000_000
            sending.cancel()
