from support.answers import answered

from firstline_core.errors import QueueFullError
from firstline_core.telemetry.metrics import RequestMetrics


def test_metrics_count_answers_errors_and_read_gauges() -> None:
    metrics = RequestMetrics("edge")
    metrics.observe(answered(), 0.003)
    metrics.count_error(QueueFullError("full"))
    metrics.gauge("outbox_items", "Items that wait.", lambda: 7)
    metrics.readings("link_seconds", "Times.", ("link", "quantile"), lambda: {("http", "0.5"): 0.25})
    metrics.readings("retries_total", "Retries.", (), lambda: {(): 3})
    text = metrics.render()[0].decode()
    assert "# TYPE firstline_edge_link_seconds summary" in text
    assert "# TYPE firstline_edge_retries_total counter" in text
    assert "# TYPE firstline_edge_outbox_items gauge" in text
    assert 'firstline_edge_link_seconds{link="http",quantile="0.5"} 0.25' in text
    assert 'firstline_edge_requests_total{reason="confident",status="final",tier="edge"} 1.0' in text
    assert 'firstline_edge_errors_total{code="queue_full"} 1.0' in text
    assert "firstline_edge_outbox_items 7.0" in text
    assert 'firstline_edge_request_seconds_bucket{le="0.005",tier="edge"} 1.0' in text
    assert 'firstline_edge_request_seconds_bucket{le="0.002",tier="edge"} 0.0' in text
