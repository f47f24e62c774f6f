from __future__ import annotations

from firstline_core.clock import SimulatedClock
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import Answer, InferResponse, ModelKey, Reason, Status, Tier
from firstline_gateway.serving.statistics import ServingStatistics

SMALL = ModelKey("small", 1)
ANSWER = Answer("r", Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, "", ())


def lines(metrics: RequestMetrics) -> list[str]:
    return metrics.render()[0].decode().splitlines()


def test_answers_are_counted_in_metrics_and_statistics() -> None:
    metrics, clock = RequestMetrics("gateway"), SimulatedClock()
    statistics = ServingStatistics(metrics, clock)
    for seconds in (0.001, 0.003):
        statistics.answered(SMALL, InferResponse("small", "1", (), answer=ANSWER), seconds)
    found = lines(metrics)
    assert 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"} 2.0' in found
    assert 'firstline_gateway_request_seconds_count{tier="cloud"} 2.0' in found
    assert 'firstline_gateway_request_seconds_bucket{le="0.001",tier="cloud"} 1.0' in found
    of_small = statistics.of(SMALL)
    assert (of_small.success.count, round(of_small.success.seconds, 6)) == (2, 0.004)
    assert of_small.last_inference_s == clock.wall_s()


def test_batches_are_counted_by_their_rows() -> None:
    metrics = RequestMetrics("gateway")
    statistics = ServingStatistics(metrics, SimulatedClock())
    for rows in (1, 3, 3, 5000):
        statistics.started(rows)
    found = lines(metrics)
    assert "firstline_gateway_batch_rows_sum 5007.0" in found
    assert "firstline_gateway_batch_rows_count 4.0" in found
    for most, count in (("2.0", 1), ("4.0", 3), ("4096.0", 3), ("+Inf", 4)):
        assert f'firstline_gateway_batch_rows_bucket{{le="{most}"}} {count}.0' in found
