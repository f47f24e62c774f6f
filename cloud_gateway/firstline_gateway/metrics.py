"""What the gateway counts beside the requests: batches, queue, drops. Names start with `firstline_gateway_`."""

from __future__ import annotations

from collections.abc import Callable

from firstline_core.telemetry.metrics import RequestMetrics

_BATCH_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class GatewayMetrics(RequestMetrics):
    """The gateway's registry."""

    def __init__(self) -> None:
        super().__init__("gateway")
        self._batch_rows = self.histogram("batch_rows", "Rows that ran as one batch.", _BATCH_ROWS_BUCKETS)
        self._expired = self.counter("expired_total", "Requests whose deadline passed before their turn to run.")

    def batch(self, rows: int) -> None:
        """Counts one batch."""
        self._batch_rows.observe(rows)

    def expired(self) -> None:
        """Counts one request dropped before it ran."""
        self._expired.inc()

    def queue_depth(self, read: Callable[[], float]) -> None:
        """Says where to read how many requests wait."""
        self.gauge("queue_depth", "Requests that wait to run.", read)
