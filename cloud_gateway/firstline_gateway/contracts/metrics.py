"""The metrics of contracts: counted and skipped audits, and what the audits show of each version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from firstline_core.routing import audit
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import ModelKey
from firstline_gateway.contracts.pool import AuditPool
from firstline_gateway.fleet.alarms import DeviceAlarm

_EVENTS_SHOWN = 32

_Values = dict[tuple[str, ...], float]


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
        pools: Callable[[], Sequence[AuditPool]],
        device_alarms: Callable[[], Sequence[DeviceAlarm]],
    ) -> None:
        self._audits = metrics.counter(
            "audits_total", "Audits that were counted, by their result.", ("model", "version", "result")
        )
        self._skipped = metrics.counter("audits_skipped_total", "Audits that were not counted, and why.", ("why",))
        version = ("model", "version")
        for name, description, read in (
            ("alarm", "1 where audits show that the contract is broken.", _alarm),
            ("e_value", "Evidence against the contract; the alarm is at the number of its promises / delta.", _e_value),
            ("risk", "Estimated mean loss of edge answers: where it is 0 or 1, the share that disagrees.", _risk),
        ):
            metrics.readings(f"contract_{name}", description, version, partial(_worst, pools, read))
        for name, description, read in (
            ("audits", "Audits in which the event can occur.", _audits),
            ("e_value", "Evidence against the promise about an event.", _e_value),
            ("alarm", "1 where audits show that the promise is broken.", _alarm),
        ):
            metrics.readings(f"contract_event_{name}", description, (*version, "event"), partial(_events, pools, read))
        metrics.readings(
            "contract_device_alarms",
            "Devices whose own audits broke the contract, as they say themselves.",
            version,
            lambda: _alarming_devices(device_alarms()),
        )

    def counted(self, model: ModelKey, lost: Sequence[bool]) -> None:
        """Counts an audit; `lost` is whether it has a loss, by pool that counted it, and is empty without an event."""
        result = "disagrees" if any(lost) else "agrees" if lost else "no_event"
        self._audits.labels(model.name, str(model.version), result).inc()

    def skipped(self, why: str) -> None:
        """Counts an audit that no pool counted."""
        self._skipped.labels(why).inc()


def _alarm(pool: AuditPool) -> float:
    return float(pool.alarmed_s is not None)


def _e_value(pool: AuditPool) -> float:
    return audit.e_value(pool.state)


def _risk(pool: AuditPool) -> float:
    return pool.risk or 0.0


def _audits(pool: AuditPool) -> float:
    return pool.state.audits


def _worst(pools: Callable[[], Sequence[AuditPool]], read: Callable[[AuditPool], float]) -> _Values:
    """Returns a value of each version's contract: the worst if several of its promises are tested."""
    found: _Values = {}
    for pool in pools():
        labels = pool.key.bundle, str(pool.key.version)
        found[labels] = max(read(pool), found.get(labels, 0.0))
    return found


def _events(pools: Callable[[], Sequence[AuditPool]], read: Callable[[AuditPool], float]) -> _Values:
    """Returns a value of each event; of a version with many events, of those with most evidence."""
    found: _Values = {}
    shown = Counter[tuple[str, str]]()
    for pool in sorted(pools(), key=_e_value, reverse=True):
        version = pool.key.bundle, str(pool.key.version)
        labels = (*version, pool.key.event)
        if pool.key.event and labels not in found and shown[version] < _EVENTS_SHOWN:
            found[labels] = read(pool)
            shown[version] += 1
    return found


def _alarming_devices(alarms: Sequence[DeviceAlarm]) -> _Values:
    lasting = {(alarm.model, alarm.device) for alarm in alarms if alarm.ended_s is None}
    found = Counter(model for model, _ in lasting)
    return {(model.name, str(model.version)): float(devices) for model, devices in found.items()}
