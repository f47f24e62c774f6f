"""Requests for a model that runs on the event loop: each is answered, refused, logged and counted on its own."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import orjson
import pytest
from support import raw_http
from support.databases import sqlite_store
from support.gateway import serving
from support.keys import create_key
from support.logs import captured_lines
from support.raw_http import RawReply, next_reply
from support.small_models import put, small_gateway
from support.waiting import work_for

from firstline_core.protocol.http_server import ServerLimits
from firstline_core.runtime import batch_times
from firstline_gateway.app import Gateway

ROW = [1.0, 2.0, 3.0, 4.0]
# Ids, times, lengths, the padding that follows from them, and numbers.
_OWN = re.compile(rb'[0-9a-f]{8}-[0-9a-f-]{27}|ms\\?":[0-9.e-]+|date: [^\r]*|length: \d+|(?<=\}) +|"data":[^]]*', re.I)


def asking(row: list[float], *, binary: bool = False, key: str = "", line: str = "X: a", **more: Any) -> bytes:
    """A request as it stands on the wire; `more` is of its V2 head."""
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [1, 4]}
    lines = [
        "POST /v2/models/small/infer HTTP/1.1",
        "Host: localhost",
        line,
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
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
    """Sends one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes) -> RawReply:
        self.writer.write(request)
        return await next_reply(self.reader)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    async with raw_http.connected(url) as (reader, writer):
        yield Connection(reader, writer)


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    put(tmp_path / "models" / "small")
    return small_gateway(tmp_path)


def with_keys(folder: Path) -> Gateway:
    put(folder / "models" / "small")
    return small_gateway(folder, auth__mode="tokens")


def idle(gateway: Gateway) -> bool:
    return not (gateway.bodies.held_bytes or gateway.plane.under_way.count or gateway.overload.in_progress)


async def test_many_at_once_get_their_own(gateway: Gateway) -> None:
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
    assert idle(gateway)


async def test_invalid_row_fails_alone(gateway: Gateway) -> None:
    async with serving(gateway) as url, connected(url) as connection:
        assert (await connection.ask(asking(ROW, binary=True)))[0] == 200
        status, _, body = await connection.ask(asking([1.0, float("nan"), 1.0, 1.0], binary=True))
        assert status == 400
        assert b"Row 0 of input 'image' has NaN" in body
        assert (await connection.ask(asking(ROW, binary=True)))[0] == 200
        status, _, body = await connection.ask(asking(ROW, binary=True, parameters={"timeout": 1}))
        assert (status, orjson.loads(body)["code"]) == (504, "deadline_exceeded")
    assert idle(gateway)
    (statistics,) = gateway.plane.statistics()
    assert statistics.fail.count >= 1


async def test_a_loop_that_stalls_makes_an_idle_gateway_refuse_nothing(gateway: Gateway) -> None:
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            for _ in range(21):
                answer = await connection.ask(asking(ROW))
                assert answer[0] == 200, answer
            while not gateway.overload.is_behind:
                work_for(0.12)
                await asyncio.sleep(0)


async def test_a_key_that_is_used_too_often_is_refused(tmp_path: Path) -> None:
    gateway = with_keys(tmp_path)
    key = create_key(sqlite_store(tmp_path), "shop", requests_per_s=0.15)  # the next request is allowed after 6.7 s
    async with serving(gateway) as url, connected(url) as connection:
        assert (await connection.ask(asking(ROW, key=key)))[0] == 200
        status, head, _ = await connection.ask(asking(ROW, key=key))
        assert (status, b"retry-after: 7" in head.lower()) == (429, True)
    assert idle(gateway)


async def test_answers_are_logged_and_counted(gateway: Gateway) -> None:
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as connection:
            ids = [orjson.loads((await connection.ask(asking(ROW)))[2])["parameters"]["request_id"] for _ in range(6)]
            text = gateway.metrics.render()[0].decode()
    answered = [line for line in lines if line["event"] == "answered"]
    assert [line["request_id"] for line in answered] == ids
    for line in answered:
        assert line.pop("ms") >= 0
        del line["request_id"]
    assert answered == [answered[0]] * 6
    assert 'requests_total{reason="requested",status="final",tier="cloud"} 6.0' in text
    assert "request_seconds_count" in text
    (statistics,) = gateway.plane.statistics()
    assert (statistics.success.count, statistics.inference_count) == (6, 6)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-{:016x}-01"


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
@pytest.mark.parametrize("binary", [True, False])
async def test_trace_is_logged_with_its_request(name: str, binary: bool, gateway: Gateway) -> None:
    with captured_lines("info") as lines:
        async with serving(gateway) as url, connected(url) as one, connected(url) as other:
            alone = [await one.ask(asking(ROW, binary=binary)) for _ in range(3)]
            for number in range(1, 9):
                line = f"{name}: {PARENT.format(number)}\r\ntracestate: a=1"
                for connection in (one, other):
                    traced = await connection.ask(asking(ROW, binary=binary, line=line))
                    plain = await connection.ask(asking(ROW, binary=binary))
                    for answer in (traced, plain):
                        assert answer[0] == 200, answer
                        assert _OWN.sub(b"", answer[2]) == _OWN.sub(b"", alone[-1][2])
    answered = [line for line in lines if line["event"] == "answered"][3:]
    assert ["trace_id" in line for line in answered] == [True, False] * 16
    assert {line.get("trace_id") for line in answered} == {"0af7651916cd43dd8448eb211c80319c", None}
    spans = [line["span_id"] for line in answered if "span_id" in line]
    assert len(set(spans)) == 16, "each request is a span of its own"
    assert not set(spans) & {f"{number:016x}" for number in range(1, 9)}


async def test_invalid_trace_is_ignored(gateway: Gateway) -> None:
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


async def test_draining_gateway_refuses_and_closes(gateway: Gateway) -> None:
    async with serving(gateway) as url, connected(url) as connection:
        for _ in range(3):
            await connection.ask(asking(ROW))
        await gateway.plane.drain()
        status, head, _ = await connection.ask(asking(ROW))
        assert (status, b"connection: close" in head.lower()) == (503, True)


async def test_request_needs_few_function_calls(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it costs in time no test can tell; in calls of Python functions it is the same everywhere."""
    monkeypatch.setattr(batch_times, "LOOP_LIMIT_S", 1.0)  # the model runs on the loop, also if the machine stalls
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

    assert calls / requests < 230


async def test_refused_client_is_not_a_pending_connection(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asking(ROW, binary=True)
    async with serving(gateway, limits=ServerLimits(pending=1)) as url, connected(url) as first:
        assert (await first.ask(request))[0] == 200
        async with connected(url) as refused:
            monkeypatch.setattr(gateway.overload, "refuses", lambda *_: True)
            assert (await refused.ask(request))[0] == 503
            async with connected(url) as third, connected(url) as fourth:  # both are pending, and one may be
                assert (await fourth.ask(request))[0] == 503
                assert await third.reader.read() == b""
            assert (await refused.ask(request))[0] == 503
