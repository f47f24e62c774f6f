"""The metrics of contracts: counted and skipped audits, and what the audits show of each version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from firstline_core.routing import audit
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import ModelKey
from firstline_gateway.contracts.devices import DeviceAlarm
from firstline_gateway.contracts.pool import Pool

_EVENTS_SHOWN = 32


class ContractMetrics:
    """Counts audits, and shows the state of the contracts.

    Args:
        metrics: the gateway's.
        pools: returns the pools of audits.
        device_alarms: returns the alarms that devices report.
    """

    def __init__(
        self,
        metrics: RequestMetrics,
        pools: Callable[[], Sequence[Pool]],
        device_alarms: Callable[[], Sequence[DeviceAlarm]],
    ) -> None:
        self._audits = metrics.counter(
            "audits_total", "Audits that were counted, by their result.", ("model", "version", "result")
        )
        self._skipped = metrics.counter("audits_skipped_total", "Audits that were not counted, and why.", ("why",))
        metrics.registry.register(_ContractCollector(pools, device_alarms))

    def counted(self, model: ModelKey, lost: Sequence[bool]) -> None:
        """Counts an audit, by whether it was lost in each pool that has taken it; none takes one without any event."""
        result = "disagrees" if any(lost) else "agrees" if lost else "no_event"
        self._audits.labels(model.name, str(model.version), result).inc()

    def skipped(self, why: str) -> None:
        """Counts an audit that no pool has taken."""
        self._skipped.labels(why).inc()


class _ContractCollector(Collector):
    """The state of each version's contract: where several promises of it are tested, the worst."""

    def __init__(self, read: Callable[[], Sequence[Pool]], alarms: Callable[[], Sequence[DeviceAlarm]]) -> None:
        self._read = read
        self._device_alarms = alarms

    def collect(self) -> Iterable[GaugeMetricFamily]:
        pools = self._read()
        yield from (
            _family(
                "alarm",
                "1 where audits show that the contract is broken.",
                pools,
                lambda pool: float(pool.alarmed_s is not None),
            ),
            _family(
                "e_value",
                "Evidence against the contract; the alarm is at the number of its promises / delta.",
                pools,
                lambda pool: audit.e_value(pool.state),
            ),
            _family(
                "risk",
                "Estimated mean loss of edge answers: where it is 0 or 1, the share that disagrees.",
                pools,
                lambda pool: pool.risk or 0.0,
            ),
            *_events(pools),
            _devices(self._device_alarms()),
        )


def _family(name: str, description: str, pools: Sequence[Pool], read: Callable[[Pool], float]) -> GaugeMetricFamily:
    worst: dict[tuple[str, str], float] = {}
    for pool in pools:
        labels = (pool.key.bundle, str(pool.key.version))
        worst[labels] = max(read(pool), worst.get(labels, 0.0))
    family = GaugeMetricFamily(f"firstline_gateway_contract_{name}", description, labels=("model", "version"))
    for labels, value in worst.items():
        family.add_metric(labels, value)
    return family


def _events(pools: Sequence[Pool]) -> Iterable[GaugeMetricFamily]:
    """Yields audits, evidence and alarm of each event; of a version with many events, of those with most evidence."""
    worst: dict[tuple[str, str], dict[str, Pool]] = {}
    for pool in pools:
        known = worst.setdefault((pool.key.bundle, str(pool.key.version)), {})
        held = known.get(pool.key.event)
        if pool.key.event and (held is None or audit.e_value(pool.state) > audit.e_value(held.state)):
            known[pool.key.event] = pool
    labels = ("model", "version", "event")
    audits = GaugeMetricFamily(
        "firstline_gateway_contract_event_audits", "Audits in which the event can occur.", labels=labels
    )
    evidence = GaugeMetricFamily(
        "firstline_gateway_contract_event_e_value", "Evidence against the promise about an event.", labels=labels
    )
    alarms = GaugeMetricFamily(
        "firstline_gateway_contract_event_alarm", "1 where audits show that the promise is broken.", labels=labels
    )
    for version, by_event in worst.items():
        most = sorted(by_event.items(), key=lambda item: audit.e_value(item[1].state), reverse=True)[:_EVENTS_SHOWN]
        for event, pool in most:
            audits.add_metric((*version, event), pool.state.audits)
            evidence.add_metric((*version, event), audit.e_value(pool.state))
            alarms.add_metric((*version, event), float(pool.alarmed_s is not None))
    return audits, evidence, alarms


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
