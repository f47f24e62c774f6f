"""The devices of each version, in memory: active devices, audited edge variants, and reported alarms."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from firstline_core.telemetry.logs import logger
from firstline_core.types import ContractAlarm, ModelKey
from firstline_gateway.contracts.pool import PoolKey, model_of
from firstline_gateway.contracts.records import HOUR_S, Contribution

_DAY_S = 86_400.0
_ALARMS = 100_000
_EVENT_LIMIT = 256  # characters

log = logger(__name__)


class ActiveDevices:
    """The devices that sent a request within the last hour."""

    def __init__(self) -> None:
        self._latest_s: OrderedDict[str, float] = OrderedDict()  # the longest silent first

    def add(self, device: str, now_s: float) -> None:
        """Notes a request of a device; `now_s` is monotonic time, and never less than in an earlier call."""
        self._latest_s[device] = now_s
        self._latest_s.move_to_end(device)
        self._expire(now_s)

    def count(self, now_s: float) -> int:
        """Returns their number."""
        self._expire(now_s)
        return len(self._latest_s)

    def _expire(self, now_s: float) -> None:
        while self._latest_s and next(iter(self._latest_s.values())) <= now_s - HOUR_S:
            self._latest_s.popitem(last=False)


class DeviceActivity:
    """The active devices of each version, and the edge variants that devices audit. Used on one event loop."""

    def __init__(self) -> None:
        self._active: dict[ModelKey, ActiveDevices] = {}
        self._variants: dict[ModelKey, dict[str, str]] = {}  # the edge variant of each device that audits
        self._auditing: dict[ModelKey, dict[str, set[str]]] = {}  # the devices that ever audited, by edge variant

    def restore(self, contributed: Mapping[PoolKey, Sequence[Contribution]], *, service_s: float, now_s: float) -> None:
        """Adds the devices that audited before this process started, so that a quota is not divided among too few.

        Args:
            contributed: the devices that audited, by promise.
            service_s: the store's own time: a device that sent a request in its last hour counts, however long no
                gateway has run since.
            now_s: monotonic time.
        """
        latest: dict[ModelKey, dict[str, tuple[float, str]]] = {}
        for key, contributions in contributed.items():
            devices = latest.setdefault(model_of(key), {})
            for one in contributions:
                devices[one.device] = max(devices.get(one.device, (-math.inf, "")), (one.service_s, key.edge_digest))
                self.audited(model_of(key), one.device, key.edge_digest)
        for model, devices in latest.items():
            self._variants[model] = {device: digest for device, (_, digest) in devices.items()}
            active = self._active[model] = ActiveDevices()
            for device, (latest_s, _) in sorted(devices.items(), key=lambda item: item[1]):
                active.add(device, now_s - max(0.0, service_s - latest_s))
            active.count(now_s)

    def requested(self, model: ModelKey, device: str, now_s: float) -> None:
        """Notes that a device sent a request for a version; `now_s` is monotonic time."""
        self._active.setdefault(model, ActiveDevices()).add(device, now_s)

    def audited(self, model: ModelKey, device: str, edge_digest: str) -> None:
        """Notes that a device audited an edge variant; the audit need not count."""
        self._variants.setdefault(model, {})[device] = edge_digest
        self._auditing.setdefault(model, {}).setdefault(edge_digest, set()).add(device)

    def variant(self, model: ModelKey, device: str) -> str | None:
        """Returns the edge variant that a device audited last; None if it never did."""
        return self._variants.get(model, {}).get(device)

    def active_devices(self, models: Iterable[ModelKey], now_s: float) -> int:
        """Returns how many devices sent requests for these versions within the last hour, each once per version."""
        return sum(self._active[model].count(now_s) for model in models if model in self._active)

    def auditing(self, model: ModelKey, variant: str | None, contributors: Mapping[PoolKey, int]) -> int:
        """Returns how many devices share a promise; for an unknown edge variant, the most that share any.

        Args:
            model: the version.
            variant: the edge variant's digest.
            contributors: of each pool, over all replicas.
        """
        counts = {digest: len(devices) for digest, devices in self._auditing.get(model, {}).items()}
        for key, devices in contributors.items():
            if model_of(key) == model:
                counts[key.edge_digest] = max(devices, counts.get(key.edge_digest, 0))
        return counts[variant] if variant is not None else max(counts.values(), default=1)


@dataclass(frozen=True, slots=True)
class DeviceAlarm:
    """The alarm that one device reports for one version's promise.

    Attributes:
        model: the version.
        device: the device that reports it.
        edge_digest: of the edge variant whose promise is broken.
        since_s: wall time of the first report.
        last_s: wall time of the latest report.
        ended_s: wall time of the first request without the alarm; None while it lasts.
        event: whose promise is broken, as the device reports it; "" for the promise about all rows.
        monotonic_s: monotonic time of the latest report, by which it expires.
    """

    model: ModelKey
    device: str
    edge_digest: str
    since_s: float
    last_s: float
    ended_s: float | None = None
    event: str = ""
    monotonic_s: float = field(default=0.0, compare=False)


class DeviceAlarms:
    """The alarms of the last day that devices raised by their own audits.

    They are shown, and change nothing for other devices: a single bad lens, or a liar, must not alarm a fleet. They are
    not stored, because a device repeats its alarm until it ends.
    """

    def __init__(self) -> None:
        self._alarms: OrderedDict[tuple[ModelKey, str], DeviceAlarm] = OrderedDict()  # oldest report first

    def report(
        self, model: ModelKey, device: str, alarm: ContractAlarm | None, now_s: float, *, monotonic_s: float
    ) -> DeviceAlarm | None:
        """Takes the alarm that a request reports.

        Args:
            model: that the request asks for.
            device: that sent the request.
            alarm: of the device's own audits; None without one.
            now_s: wall time, to be shown.
            monotonic_s: monotonic time, by which alarms expire.

        Returns:
            An alarm that has begun; None for one that lasts or has ended.
        """
        before = self._alarms.get((model, device))
        if alarm is not None:
            lasting = before is not None and before.ended_s is None and before.edge_digest == alarm.edge_digest
            since_s = before.since_s if before is not None and lasting else now_s
            event = alarm.event[:_EVENT_LIMIT]
            reported = DeviceAlarm(
                model, device, alarm.edge_digest, since_s, now_s, event=event, monotonic_s=monotonic_s
            )
            self._put(reported)
            if not lasting:
                log.error("device contract broken by its own audits", **_log_fields(reported))
            while len(self._alarms) > _ALARMS:
                self._alarms.popitem(last=False)
            return None if lasting else reported
        if before is not None and before.ended_s is None:
            ended = replace(before, last_s=now_s, ended_s=now_s, monotonic_s=monotonic_s)
            self._put(ended)
            log.warning("device alarm ended", **_log_fields(ended))
        return None

    def listed(self, now_s: float) -> list[DeviceAlarm]:
        """Returns lasting alarms, then those that ended within the last day, the latest to begin first.

        Args:
            now_s: monotonic time.
        """
        while self._alarms and next(iter(self._alarms.values())).monotonic_s <= now_s - _DAY_S:
            self._alarms.popitem(last=False)
        return sorted(
            self._alarms.values(), key=lambda alarm: (alarm.ended_s is not None, -alarm.since_s, alarm.device)
        )

    def _put(self, alarm: DeviceAlarm) -> None:
        key = (alarm.model, alarm.device)
        self._alarms[key] = alarm
        self._alarms.move_to_end(key)


def _log_fields(alarm: DeviceAlarm) -> dict[str, object]:
    model = alarm.model
    return {
        "device": alarm.device,
        "model": model.name,
        "version": model.version,
        "edge_digest": alarm.edge_digest,
        "contract_event": alarm.event or None,
    }
