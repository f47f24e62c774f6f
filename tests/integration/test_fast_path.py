"""Requests on the fast path are answered, judged and counted as those that go the long way."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from support.databases import sqlite_store
from support.gateway import serving
from support.keys import create_key, revoke_key
from support.logs import captured_lines
from support.small_models import gateway_of, put

from firstline_core.errors import NotReadyError
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.api.connection import courses, door, fast_path
from firstline_gateway.api.connection.fast_exchange import FastExchange
from firstline_gateway.executors.base import Outcome
from firstline_gateway.gateway import Gateway

ROW = [1.0, 2.0, 3.0, 4.0]
SMALL = ModelKey("small", 1)
# Ids, times, lengths, the padding that follows from them, and numbers.
_OWN = re.compile(rb'[0-9a-f]{8}-[0-9a-f-]{27}|ms\\?":[0-9.e-]+|date: [^\r]*|length: \d+|(?<=\}) +|"data":[^]]*', re.I)


def asking(row: list[float], *, binary: bool = False, key: str = "", line: str = "Host: a", **more: Any) -> bytes:
    """A request as it stands on the wire; `more` is of its V2 head."""
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [1, 4]}
    lines = ["POST /v2/models/small/infer HTTP/1.1", line, *([f"Authorization: Bearer {key}"] if key else [])]
    if binary:
        raw = np.array(row, np.float32).tobytes()
        more = {"parameters": {"binary_data_output": True}} | more
        head = json.dumps(more | {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}).encode()
        lines.append(f"Inference-Header-Content-Length: {len(head)}")
        body = head + raw
    else:
        body = json.dumps(more | {"inputs": [tensor | {"data": row}]}).encode()
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Connection:
    """One, on which requests are asked one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes, bytes]:
        async with asyncio.timeout(10):
            head = await self._reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
            assert size is not None
            return int(head.split(b" ")[1]), head, await self._reader.readexactly(int(size[1]))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


class Taken:
    """How many requests a gateway's fast path took."""

    def __init__(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, *, takes: bool = True) -> None:
        self.count = 0
        begin = gateway.answering.begin

        def counting(*arguments: Any) -> bool:
            taken = takes and begin(*arguments)
            self.count += taken
            return taken

        monkeypatch.setattr(gateway.answering, "begin", counting)


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    put(tmp_path / "models" / "small")
    return gateway_of(tmp_path)


def with_keys(folder: Path) -> Gateway:
    put(folder / "models" / "small")
    return gateway_of(folder, auth__mode="tokens")


def idle(gateway: Gateway) -> bool:
    return not (gateway.bodies._taken_bytes or gateway.answering.under_way.count)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["application", "device", ""])
async def test_it_answers_as_the_long_way_does(
    binary: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for takes in (False, True):
        folder = tmp_path / str(takes)
        put(folder / "models" / "small")
        found = with_keys(folder) if kind else gateway_of(folder)
        key = create_key(sqlite_store(folder), "shop", kind) if kind else ""
        taken = Taken(found, monkeypatch, takes=takes)
        answers = []
        async with serving(found) as url, connected(url) as connection:
            for number in range(6):
                row = [float(number), 2.0, 3.0, 4.0]
                for more in ({}, {"id": f"q{number}"}, {"id": f"q{number}", "outputs": [{"name": "probabilities"}]}):
                    answers.append(await connection.ask(asking(row, binary=binary, key=key, **more)))
        assert {status for status, _, _ in answers} == {200}
        assert bool(taken.count) is takes  # a busy machine takes few
        assert idle(found)
        said.append(answers)
    for (_, head, body), (_, long_head, long_body) in zip(said[1], said[0], strict=True):
        assert _OWN.sub(b"", head) == _OWN.sub(b"", long_head)
        assert _OWN.sub(b"", body) == _OWN.sub(b"", long_body)
        if binary:
            assert body[-12:] == long_body[-12:]
        else:
            numbers, long_numbers = (orjson.loads(each)["outputs"][0]["data"] for each in (body, long_body))
            assert numbers == long_numbers


async def test_many_at_once_get_their_own(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(gateway, monkeypatch)
    async with serving(gateway) as url:
        async with connected(url) as one:
            alone = [orjson.loads((await one.ask(asking([float(n), 1, 1, 1])))[2])["outputs"] for n in range(8)]

        async def ask(number: int) -> None:
            async with connected(url) as connection:
                for _ in range(5):
                    _, _, body = await connection.ask(asking([float(number), 1, 1, 1]))
                    np.testing.assert_allclose(
                        orjson.loads(body)["outputs"][0]["data"], alone[number][0]["data"], atol=1e-6
                    )

        await asyncio.gather(*(ask(number) for number in range(8)))
    assert taken.count >= 8 * 4
    assert idle(gateway)


async def test_what_is_wrong_with_one_is_its_own_and_is_said_as_ever(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(gateway, monkeypatch)
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            assert (await connection.ask(asking(ROW, binary=True)))[0] == 200
        before = taken.count
        for _ in range(100):  # a busy machine takes few
            status, _, body = await connection.ask(asking([1.0, float("nan"), 1.0, 1.0], binary=True))
            assert status == 400
            assert b"Row 0 of input 'image' has NaN" in body
            if taken.count > before:
                break
        assert taken.count > before
        assert (await connection.ask(asking(ROW, binary=True)))[0] == 200
        status, _, body = await connection.ask(asking(ROW, binary=True, parameters={"timeout": 1}))
        assert (status, orjson.loads(body)["code"]) == (504, "deadline_exceeded")
    assert idle(gateway)
    (told,) = gateway.plane.statistics()
    assert told.fail.count >= 1


async def test_a_revoked_key_is_refused_and_a_wrong_one_always_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = with_keys(tmp_path)
    key = create_key(sqlite_store(tmp_path), "shop")
    taken = Taken(gateway, monkeypatch)
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(4):
            assert (await connection.ask(asking(ROW, key=key)))[0] == 200
            assert (await connection.ask(asking(ROW, key=key[:-1] + "x")))[0] == 401
        assert taken.count >= 1
        revoke_key(sqlite_store(tmp_path), "shop")
        await gateway.identity.gatekeeper.refreshed()
        assert (await connection.ask(asking(ROW, key=key)))[0] == 401
    assert idle(gateway)


async def test_a_key_is_used_as_often_as_it_may_whichever_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = with_keys(tmp_path)
    key = create_key(sqlite_store(tmp_path), "shop", requests_per_s=1000.0)
    taken = Taken(gateway, monkeypatch)
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            await connection.ask(asking(ROW, key=key))
        left = chain([0.0, 0.0], repeat(7.0))
        monkeypatch.setattr(gateway.identity.gatekeeper, "wait_s", lambda _: next(left))
        assert (await connection.ask(asking(ROW, key=key)))[0] == 200
        assert (await connection.ask(asking(ROW, key=key)))[0] == 200
        before = taken.count
        status, head, _ = await connection.ask(asking(ROW, key=key))
        assert (status, b"retry-after: 7" in head.lower(), taken.count) == (429, True, before)
    assert idle(gateway)


async def test_what_the_batch_does_not_take_gives_back_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = with_keys(tmp_path)
    key = create_key(sqlite_store(tmp_path), "shop")
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            await connection.ask(asking(ROW, key=key))
        uses = []
        keeper = gateway.identity.gatekeeper

        def use(_: object) -> float:
            uses.append(1)
            return 0.0

        monkeypatch.setattr(keeper, "wait_s", use)
        monkeypatch.setattr(keeper, "give_back", lambda _: uses.pop())
        monkeypatch.setattr(gateway.plane._batcher, "enter", lambda *_: False)
        assert (await connection.ask(asking(ROW, key=key)))[0] == 200
    assert len(uses) == 1
    assert idle(gateway)


async def test_a_model_that_is_loaded_anew_answers_at_once_and_one_that_is_taken_away_no_more(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(gateway, monkeypatch)

    def numbers(answer: tuple[int, bytes, bytes]) -> list[float]:
        found: list[float] = orjson.loads(answer[2])["outputs"][0]["data"]
        return found

    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            before = numbers(await connection.ask(asking(ROW)))
        put(tmp_path / "models" / "small", seed=1)
        await gateway.plane.load("small")
        after = [numbers(await connection.ask(asking(ROW))) for _ in range(2)]
        assert after[0] == after[1] != before
        assert taken.count >= 3
        await gateway.plane.unload("small")
        assert (await connection.ask(asking(ROW)))[0] == 404
    assert idle(gateway)


async def test_every_answer_has_its_line_and_is_counted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(gateway, monkeypatch)
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as connection:
            ids = [orjson.loads((await connection.ask(asking(ROW)))[2])["parameters"]["request_id"] for _ in range(6)]
            text = gateway.metrics.render()[0].decode()
    assert taken.count >= 3
    answered = [line for line in lines if line["event"] == "answered"]
    assert [line["request_id"] for line in answered] == ids
    for line in answered:
        assert line.pop("ms") >= 0
        del line["request_id"]
    assert answered == [answered[0]] * 6
    assert 'requests_total{reason="requested",status="final",tier="cloud"} 6.0' in text
    assert "request_seconds_count" in text
    (told,) = gateway.plane.statistics()
    assert (told.success.count, told.inference_count) == (6, 6)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-{:016x}-01"


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
@pytest.mark.parametrize("binary", [True, False])
async def test_a_trace_is_in_the_line_of_its_request_and_costs_it_no_way(
    name: str, binary: bool, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(gateway, monkeypatch)
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as one, connected(url) as other:
            alone = [await one.ask(asking(ROW, binary=binary)) for _ in range(3)]
            before = taken.count
            for number in range(1, 9):
                line = f"{name}: {PARENT.format(number)}\r\ntracestate: a=1"
                for connection in (one, other):
                    traced = await connection.ask(asking(ROW, binary=binary, line=line))
                    plain = await connection.ask(asking(ROW, binary=binary))
                    for answer in (traced, plain):
                        assert answer[0] == 200
                        assert _OWN.sub(b"", answer[2]) == _OWN.sub(b"", alone[-1][2])
            assert len(gateway.heads._heads) == 2, "with and without the state; no trace makes a head of its own"
    assert taken.count - before >= 2 * (16 - 3)
    answered = [line for line in lines if line["event"] == "answered"][3:]
    assert ["trace_id" in line for line in answered] == [True, False] * 16
    assert {line.get("trace_id") for line in answered} == {"0af7651916cd43dd8448eb211c80319c", None}
    spans = [line["span_id"] for line in answered if "span_id" in line]
    assert len(set(spans)) == 16, "each request is a span of its own"
    assert not set(spans) & {f"{number:016x}" for number in range(1, 9)}


async def test_a_trace_that_is_none_changes_nothing(gateway: Gateway) -> None:
    good = PARENT.format(1)
    wrong = [
        *(f"traceparent: {value}" for value in ("", "00", good.upper(), good + "-x", PARENT.format(0), "\xff" * 55)),
        f"traceparent: {good}\r\ntraceparent: {good}",
        f"TraceParent: {good}\r\nx: {good}",
        f"traceparent:{good}",
    ]
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as connection:
            answers = [await connection.ask(asking(ROW, line=line)) for line in wrong for _ in range(3)]
    assert {status for status, _, _ in answers} == {200}
    traced = ["trace_id" in line for line in lines if line["event"] == "answered"]
    assert traced == [False] * 21 + [True] * 6, "the last two are spelled in a way that is right, and rare"


async def test_a_refusal_names_its_trace(tmp_path: Path) -> None:
    gateway = with_keys(tmp_path)
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as connection:
            for key in ("", create_key(sqlite_store(tmp_path), "shop")):
                line = f"traceparent: {PARENT.format(7)}"
                request = asking([1.0, 2.0, 3.0], key=key, line=line)
                assert (await connection.ask(request))[0] == (400 if key else 401)
    refused = [line for line in lines if line["event"] == "refused"]
    assert [line["trace_id"] for line in refused] == ["0af7651916cd43dd8448eb211c80319c"] * 2


async def test_while_it_drains_it_refuses_and_says_that_the_connection_ends(gateway: Gateway) -> None:
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            await connection.ask(asking(ROW))
        await gateway.answering.drain()
        status, head, _ = await connection.ask(asking(ROW))
        assert (status, b"connection: close" in head.lower()) == (503, True)


class Held:
    """Keeps what is to run on the loop until the test lets it."""

    def __init__(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        batcher = gateway.plane._batcher
        self.waiting: list[Any] = []

        def enter(key: ModelKey, request: Any, now_s: float, answered: Any) -> bool:
            if not isinstance(answered, FastExchange):
                return False
            self.waiting.append(answered)
            return True

        monkeypatch.setattr(batcher, "enter", enter)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is awaited is in the server, which has no event for it)
            await asyncio.sleep(0.001)


async def test_a_client_that_leaves_gives_back_what_its_request_held(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as connection:
            for _ in range(3):
                await connection.ask(asking(ROW))
            held = Held(gateway, monkeypatch)
            connection.writer.write(asking(ROW))
            await until(lambda: len(held.waiting) == 1)
            assert not idle(gateway)
            connection.writer.transport.abort()
            await until(lambda: idle(gateway))
            assert held.waiting[0].done()
    assert [line["outcome"] for line in lines if line["event"] == "refused"] == ["link_down"]


async def test_an_end_and_what_nobody_foresaw_are_told_and_the_next_waits_its_turn(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            await connection.ask(asking(ROW))
        held = Held(gateway, monkeypatch)
        for error, expected in ((NotReadyError("It ends."), 503), (ZeroDivisionError("no"), 500)):
            held.waiting.clear()
            connection.writer.write(asking(ROW))
            await until(lambda: len(held.waiting) == 1)
            connection.writer.write(asking(ROW, line="Host: b"))  # known to nobody: it waits behind
            await until(lambda: len(held.waiting[0].protocol.pipeline) == 1)
            held.waiting[0].set_exception(error)
            status, _, body = await connection.answer()
            assert status == expected, body
            assert (await connection.answer())[0] == 200
    assert idle(gateway)


async def test_an_answer_that_cannot_be_said_is_counted_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            await connection.ask(asking(ROW))
        held = Held(gateway, monkeypatch)
        connection.writer.write(asking(ROW))
        await until(lambda: len(held.waiting) == 1)
        held.waiting[0].set_result(np.full((1, 3), np.nan, np.float32))
        assert (await connection.answer())[0] >= 400
    (told,) = gateway.plane.statistics()
    assert (told.success.count, told.fail.count) == (4, 0)


async def test_what_it_knows_is_bounded_over_all_heads(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses, "_KNOWN_OF_ALL", 8)
    begin, paths = fast_path.FastPath.begin, set()

    def noting(path: fast_path.FastPath, *arguments: Any) -> FastExchange | None:
        paths.add(path)
        return begin(path, *arguments)

    monkeypatch.setattr(fast_path.FastPath, "begin", noting)
    most = 0
    async with serving(gateway) as url, connected(url) as connection:
        for host in range(4):
            for number in range(5):
                for _ in range(3):
                    asked = asking(ROW, binary=True, line=f"Host: {host}", parameters={"mine": number})
                    assert (await connection.ask(asked))[0] == 200
                (path,) = paths
                most = max(
                    most, sum(len(course.known) for course in path._courses._courses.values() if course is not None)
                )
    assert 2 < most <= 8


async def test_a_batch_that_comes_late_is_told_so(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(gateway, monkeypatch)
    executor = gateway._executor
    run_now = executor.run_now  # type: ignore[attr-defined]
    ahead_s = 0.0

    def slow(key: ModelKey, inputs: list[Tensor], deadlines_s: list[float | None]) -> list[Outcome]:
        nonlocal ahead_s
        found: list[Outcome] = run_now(key, inputs, deadlines_s)
        ahead_s += 60.0
        return found

    async with serving(gateway) as url, connected(url) as connection:
        later = {"parameters": {"timeout": 30_000_000}}
        for _ in range(3):
            assert (await connection.ask(asking(ROW, **later)))[0] == 200
        now_s = gateway.plane._batcher._inline._clock.monotonic_s  # type: ignore[union-attr]

        class Ahead:
            def monotonic_s(self) -> float:
                return now_s() + ahead_s

        monkeypatch.setattr(gateway.plane._batcher._inline, "_clock", Ahead())
        monkeypatch.setattr(executor, "run_now", slow)
        before = taken.count
        status, _, body = await connection.ask(asking(ROW, **later))
        assert (status, orjson.loads(body)["code"]) == (504, "deadline_exceeded")
        assert taken.count == before + 1
    assert idle(gateway)


async def test_a_request_costs_so_many_calls(gateway: Gateway) -> None:
    """What it costs in time no test can tell; in calls of Python functions it is the same everywhere."""
    request, requests, calls = asking(ROW, binary=True), 40, 0
    packages = tuple(f"{os.sep}firstline_{each}{os.sep}" for each in ("core", "gateway"))

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and any(each in frame.f_code.co_filename for each in packages)

    with captured_lines("info"):
        async with serving(gateway) as url, connected(url) as connection:
            for _ in range(5):
                await connection.ask(request)
            sys.setprofile(count)
            try:
                for _ in range(requests):
                    await connection.ask(request)
            finally:
                sys.setprofile(None)

    assert calls / requests < 125


async def test_who_was_refused_unread_has_asked(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "NEWCOMERS_LIMIT", 1)
    request = asking(ROW, binary=True)
    async with serving(gateway) as url, connected(url) as first:
        assert (await first.ask(request))[0] == 200  # its head is known from now on
        async with connected(url) as refused:
            monkeypatch.setattr(gateway.unread, "refuses", lambda *_: True)
            assert (await refused.ask(request))[0] == 503
            async with connected(url) as third, connected(url) as fourth:  # newcomers, of whom the older is ended
                assert (await fourth.ask(request))[0] == 503
                assert await third._reader.read() == b""
            assert (await refused.ask(request))[0] == 503
