"""Spans: sampled by the caller or by chance, exported with their parents, and exemplars of latencies."""

import asyncio
import sys
import time
from collections.abc import Iterator

import pytest
from support.collector import Collector, collector
from support.edge import full_answer, request
from support.logs import captured_lines
from support.streams import serving_streams

from firstline_core.errors import ConfigError
from firstline_core.telemetry import tracing
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.trace import received
from firstline_core.types import TraceContext

SAMPLED = received("00-" + "1" * 32 + "-" + "2" * 16 + "-01")
UNSAMPLED = received("00-" + "3" * 32 + "-" + "2" * 16 + "-00")
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture
def received_spans() -> Iterator[Collector]:
    with collector() as found:
        tracing.configure("service", found.endpoint, 1.0, instance="device-1")
        yield found
        tracing.close()


def test_nothing_is_exported_by_default() -> None:
    tracing.configure("service", "", 1.0)
    assert not tracing.active and tracing.begin() is None and not tracing.is_sampled(SAMPLED)
    tracing.record("request", SAMPLED, 1.0, own=True)
    tracing.close()


def test_a_span_has_its_parent_its_time_and_no_empty_attribute(received_spans: Collector) -> None:
    tracing.record("request", SAMPLED, 2.0, ago_s=1.0, own=True, tier="edge", error="")
    tracing.record("model", SAMPLED, 0.5, ago_s=1.0)
    tracing.record("request", UNSAMPLED, 1.0, own=True)
    tracing.record("request", None, 1.0, own=True)
    tracing.close()
    request, model = received_spans.spans
    assert (request.span_id, request.parent_id) == (SAMPLED.span_id, "2" * 16)
    assert (request.service, request.attributes) == ("service", {"tier": "edge"})
    assert (model.trace_id, model.parent_id) == ("1" * 32, SAMPLED.span_id) and model.span_id != SAMPLED.span_id
    assert request.ends_s - request.begins_s == pytest.approx(2.0) and model.ends_s == pytest.approx(
        request.ends_s, abs=0.1
    )


@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_traces_begin_by_chance(sample: float) -> None:
    with collector() as found:
        tracing.configure("service", found.endpoint, sample)
        began = [tracing.begin() for _ in range(50)]
        tracing.close()
    assert all((each is not None) == (sample == 1.0) for each in began)
    assert len({each.trace_id for each in began if each is not None}) in (0, 50)
    for each in filter(None, began):
        assert received(each.traceparent) is not None and each.parent_id == ""


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"opentelemetry.*firstline\[otel\]"):
        tracing.configure("service", "http://127.0.0.1:1", 1.0)
    assert not tracing.active


def test_a_collector_that_is_away_costs_spans_and_one_line() -> None:
    with collector() as closed:
        pass
    tracing.configure("service", closed.endpoint, 1.0)
    with captured_lines("info") as lines:
        for _ in range(3000):  # several batches
            tracing.record("request", SAMPLED, 1.0, own=True)
        began_s = time.monotonic()
        tracing.close()
    assert [line["event"] for line in lines] == ["spans not exported; see tracing.endpoint"]
    assert time.monotonic() - began_s < 10


async def test_a_collectors_endless_answer_is_not_read() -> None:
    left = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
                await writer.drain()
        except ConnectionError:
            left.set()

    async with serving_streams(endless) as port, asyncio.timeout(20):
        tracing.configure("service", f"http://127.0.0.1:{port}", 1.0)
        tracing.record("request", SAMPLED, 1.0, own=True)
        await left.wait()
        await asyncio.to_thread(tracing.close)


async def test_a_collector_that_never_ends_its_answer_delays_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_CLOSE_S", 0.2)
    requested = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        requested.set()
        while True:
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.1)

    async with serving_streams(drip) as port:
        tracing.configure("service", f"http://127.0.0.1:{port}", 1.0)
        tracing.record("request", SAMPLED, 1.0, own=True)
        await requested.wait()
        async with asyncio.timeout(15):
            await asyncio.to_thread(tracing.close)


@pytest.mark.parametrize("trace", [SAMPLED, UNSAMPLED, None])
def test_an_exported_trace_is_an_exemplar_of_its_latency(received_spans: Collector, trace: TraceContext | None) -> None:
    metrics = RequestMetrics("edge")
    infer_request = request(0.5)
    metrics.observe(full_answer(infer_request, "0" * 64), 0.003, trace)
    text, content_type = metrics.render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    shown = [line for line in text.decode().splitlines() if "# {" in line]
    assert len(shown) == (trace is SAMPLED)
    assert all('le="0.005"' in line and f'trace_id="{"1" * 32}"' in line for line in shown)
    plain, content_type = metrics.render()
    assert b"trace_id" not in plain and content_type.startswith("text/plain")
