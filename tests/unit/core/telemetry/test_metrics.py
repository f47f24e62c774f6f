from support.answers import answered

from firstline_core.errors import QueueFullError
from firstline_core.telemetry.metrics import RequestMetrics


def test_metrics_count_answers_errors_and_read_gauges() -> None:
    metrics = RequestMetrics("edge")
    metrics.observe(answered(), 0.003)
    metrics.count_error(QueueFullError("full"))
    metrics.gauge("outbox_items", "Items that wait.", lambda: 7)
    metrics.readings("link_seconds", "Times.", ("link", "quantile"), lambda: {("http", "0.5"): 0.25})
    text = metrics.render()[0].decode()
    assert "# TYPE firstline_edge_link_seconds summary" in text
    assert 'firstline_edge_link_seconds{link="http",quantile="0.5"} 0.25' in text
    assert 'firstline_edge_requests_total{reason="confident",status="final",tier="edge"} 1.0' in text
    assert 'firstline_edge_errors_total{code="queue_full"} 1.0' in text
    assert "firstline_edge_outbox_items 7.0" in text
    assert 'firstline_edge_request_seconds_bucket{le="0.005",tier="edge"} 1.0' in text
    assert 'firstline_edge_request_seconds_bucket{le="0.002",tier="edge"} 0.0' in text


def test_times_are_summed_and_counted_by_tier() -> None:
    metrics = RequestMetrics("gateway")
    for seconds in (0.00005, 0.3, 60.0):
        metrics.observe(answered(), seconds)
    lines = metrics.render()[0].decode().splitlines()
    for bound, count in (("5e-05", 1.0), ("0.2", 1.0), ("0.5", 2.0), ("10.0", 2.0), ("+Inf", 3.0)):
        assert f'firstline_gateway_request_seconds_bucket{{le="{bound}",tier="edge"}} {count}' in lines
    assert 'firstline_gateway_request_seconds_count{tier="edge"} 3.0' in lines
    assert 'firstline_gateway_request_seconds_sum{tier="edge"} 60.30005' in lines
    assert any(line.startswith('firstline_gateway_request_seconds_created{tier="edge"}') for line in lines)
    assert not any('tier="cloud"' in line for line in lines)
