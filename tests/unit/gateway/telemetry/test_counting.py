from __future__ import annotations

import asyncio

from firstline_core.clock import SimulatedClock
from firstline_core.types import ModelKey, Reason, Status, Tier
from firstline_gateway.telemetry.counting import Counting
from firstline_gateway.telemetry.metrics import GatewayMetrics
from firstline_gateway.telemetry.statistics import Statistics

SMALL, SAID = ModelKey("small", 1), (Tier.CLOUD, Reason.REQUESTED, Status.FINAL)


def made() -> tuple[Counting, GatewayMetrics, Statistics, SimulatedClock]:
    metrics, statistics, clock = GatewayMetrics(), Statistics(), SimulatedClock()
    return Counting(metrics, statistics, clock), metrics, statistics, clock


def lines(metrics: GatewayMetrics) -> list[str]:
    return metrics.render()[0].decode().splitlines()


async def test_whoever_reads_the_numbers_has_every_answer_in_them() -> None:
    counting, metrics, _, clock = made()
    for seconds in (0.001, 0.003):
        counting.answered(SMALL, SAID, seconds)
    found = lines(metrics)
    assert 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"} 2.0' in found
    assert 'firstline_gateway_request_seconds_count{tier="cloud"} 2.0' in found
    assert 'firstline_gateway_request_seconds_bucket{le="0.001",tier="cloud"} 1.0' in found
    counting.answered(SMALL, SAID, 0.001)
    told = counting.told(SMALL, None)
    assert (told.success.count, round(told.success.seconds, 6)) == (3, 0.005)
    assert told.last_inference_s == clock.wall_s()


async def test_they_are_counted_though_nobody_reads_them() -> None:
    counting, _, statistics, _ = made()
    counting.answered(SMALL, SAID, 0.001)
    async with asyncio.timeout(5):
        while not statistics.of(SMALL).success.count:  # noqa: ASYNC110 (a counter tells nobody)
            await asyncio.sleep(0.001)
    for _ in range(600):
        counting.answered(SMALL, SAID, 0.001)
    assert statistics.of(SMALL).success.count > 500


def test_batches_are_counted_by_their_rows() -> None:
    _, metrics, _, _ = made()
    for rows in (1, 3, 3, 5000):
        metrics.batch(rows)
    found = lines(metrics)
    assert "firstline_gateway_batch_rows_sum 5007.0" in found
    assert "firstline_gateway_batch_rows_count 4.0" in found
    for most, count in (("2.0", 1), ("4.0", 3), ("4096.0", 3), ("+Inf", 4)):
        assert f'firstline_gateway_batch_rows_bucket{{le="{most}"}} {count}.0' in found
