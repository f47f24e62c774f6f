"""What the gateway counts beside the requests: batches, queue, drops. Names start with `firstline_gateway_`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from firstline_core.routing import audit
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import ModelKey
from firstline_gateway.contracts.device_alarms import DeviceAlarm
from firstline_gateway.contracts.pool import Pool

_BATCH_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class GatewayMetrics(RequestMetrics):
    """The gateway's registry.

    Attributes:
        before_reading: called first when somebody asks for the numbers.
    """

    def __init__(self) -> None:
        super().__init__("gateway")
        self._batches: Counter[int] = Counter()  # by their rows
        self.registry.register(_BatchCollector(self._batches))
        self._late = self.counter("late_total", "Requests that were let in and not answered by their deadline.")
        self._audits = self.counter(
            "audits_total", "Audits that were counted, by their result.", ("model", "version", "result")
        )
        self._skipped = self.counter("audits_skipped_total", "Audits that were not counted, and why.", ("why",))

        self.before_reading: Callable[[], None] = lambda: None
        self._jobs = self.counter("jobs_total", "Jobs, by what became of them.", ("event",))
        self._deliveries = self.counter("deliveries_total", "Requests that keep a device's promise.", ("result",))

    def render(self) -> tuple[bytes, str]:
        self.before_reading()
        return super().render()

    def batch(self, rows: int) -> None:
        """Counts one batch."""
        self._batches[rows] += 1

    def late(self) -> None:
        """Counts one request that was let in and whose deadline passed."""
        self._late.inc()

    def queue(self, depth: Callable[[], float], wait_s: Callable[[], float]) -> None:
        """Says where to read how many requests wait, and how long another would."""
        self.gauge("queue_depth", "Requests that wait to run.", depth)
        self.gauge("queue_seconds", "How long a request would wait that came now.", wait_s)

    def models(self, resident: Callable[[], float], used_bytes: Callable[[], float]) -> None:
        """Says where to read how many models are in memory, and what they take of the budget."""
        self.gauge("models_resident", "Versions of models that are in memory.", resident)
        self.gauge("models_bytes", "What they take of models.memory_budget_mb.", used_bytes)

    def expiries(self, read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Says where to read when signed metadata, and the devices' authority, end."""
        self.readings(
            "expiry_timestamp_seconds",
            "When the signed metadata of a role, or the devices' certificate authority, ends (Unix time).",
            ("role",),
            read,
        )

    def delivery(self, result: Literal["recorded", "repeated", "refused", "reused"]) -> None:
        """Counts a delivery: new, known, not to be kept now, or another's id."""
        self._deliveries.labels(result).inc()

    def job(self, event: Literal["submitted", "answered", "failed"]) -> None:
        """Counts what becomes of a job."""
        self._jobs.labels(event).inc()

    def store(self, read: Callable[[], float]) -> None:
        """Says where to read whether the store takes what is to be kept."""
        self.gauge("store_up", "1 while the store takes what is to be kept.", read)

    def audit(self, model: ModelKey, *, disagrees: bool) -> None:
        """Counts an audit that was counted."""
        self._audits.labels(model.name, str(model.version), "disagrees" if disagrees else "agrees").inc()

    def audit_skipped(self, why: str) -> None:
        """Counts one that was not."""
        self._skipped.labels(why).inc()

    def contracts(self, read: Callable[[], Sequence[Pool]], alarms: Callable[[], Sequence[DeviceAlarm]]) -> None:
        """Says where to read the pools of audits, and what devices say of their own."""
        self.registry.register(_ContractCollector(read, alarms))


class _BatchCollector(Collector):
    """Batches by their rows, put into Prometheus' form when somebody asks: to count one there takes as long as it did.

    Args:
        batches: how many there were, by their rows.
    """

    def __init__(self, batches: Counter[int]) -> None:
        self._batches = batches

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily("firstline_gateway_batch_rows", "Rows that ran as one batch.")
        found = self._batches.copy()
        counts = [(str(float(most)), _up_to(most, found)) for most in _BATCH_ROWS_BUCKETS]
        family.add_metric((), [*counts, ("+Inf", found.total())], sum(rows * count for rows, count in found.items()))
        return (family,)


def _up_to(most: int, batches: Counter[int]) -> int:
    return sum(count for rows, count in batches.items() if rows <= most)


class _ContractCollector(Collector):
    """What the audits show of each version: where several promises of it are tested, the worst."""

    def __init__(self, read: Callable[[], Sequence[Pool]], alarms: Callable[[], Sequence[DeviceAlarm]]) -> None:
        self._read = read
        self._device_alarms = alarms

    def collect(self) -> Iterable[GaugeMetricFamily]:
        pools = self._read()
        yield from (
            _family("alarm", "1 where audits show that the contract is broken.", pools, _alarms),
            _family("e_value", "Evidence against the contract; the alarm is at 1 / delta.", pools, _e_value),
            _family("risk", "Estimated share of kept answers that disagree.", pools, _risk),
            _devices(self._device_alarms()),
        )


def _alarms(pool: Pool) -> float:
    return float(pool.alarmed_s is not None)


def _e_value(pool: Pool) -> float:
    return audit.e_value(pool.state)


def _risk(pool: Pool) -> float:
    return pool.risk or 0.0


def _family(name: str, description: str, pools: Sequence[Pool], read: Callable[[Pool], float]) -> GaugeMetricFamily:
    worst: dict[tuple[str, str], float] = {}
    for pool in pools:
        labels = (pool.key.bundle, str(pool.key.version))
        worst[labels] = max(read(pool), worst.get(labels, 0.0))
    family = GaugeMetricFamily(f"firstline_gateway_contract_{name}", description, labels=("model", "version"))
    for labels, value in worst.items():
        family.add_metric(labels, value)
    return family


def _devices(alarms: Sequence[DeviceAlarm]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "firstline_gateway_contract_device_alarms",
        "Devices whose own audits broke the contract, as they say themselves.",
        labels=("model", "version"),
    )
    under_way = Counter((alarm.model.name, str(alarm.model.version)) for alarm in alarms if alarm.ended_s is None)
    for labels in {(alarm.model.name, str(alarm.model.version)) for alarm in alarms}:  # 0 for those that ended
        family.add_metric(labels, under_way[labels])
    return family
