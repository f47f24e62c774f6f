"""The cost of an alarm: the devices of the last hour, and what each of them may escalate. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.contracts.pool import PoolKey, model_of
from firstline_gateway.contracts.records import HOUR_S, Contribution


def share_per_hour(capacity_per_hour: float, devices: int) -> float:
    """Returns how much one device may escalate after an alarm, so that all devices stay within the capacity.

    Args:
        capacity_per_hour: escalations that the gateway has room for.
        devices: the devices that sent a request within the last hour; at least 1.
    """
    return capacity_per_hour / max(1, devices)


class Seen:
    """The devices that asked within the last hour, each by its latest request."""

    def __init__(self) -> None:
        self._latest_s: OrderedDict[str, float] = OrderedDict()  # the longest silent first

    def see(self, device: str, now_s: float) -> None:
        """Notes a request.

        Args:
            device: the device that sent the request.
            now_s: on a monotonic clock, and never less than in an earlier call.
        """
        self._latest_s[device] = now_s
        self._latest_s.move_to_end(device)
        self._forget(now_s)

    def count(self, now_s: float) -> int:
        """How many there are."""
        self._forget(now_s)
        return len(self._latest_s)

    def _forget(self, now_s: float) -> None:
        while self._latest_s and next(iter(self._latest_s.values())) <= now_s - HOUR_S:
            self._latest_s.popitem(last=False)


class Fleet:
    """All of them; used on one event loop."""

    def __init__(self) -> None:
        self._seen: dict[ModelKey, Seen] = {}
        self._variants: dict[ModelKey, dict[str, str]] = {}  # the edge variant of each device that audits
        self._auditing: dict[ModelKey, dict[str, set[str]]] = {}  # the devices that ever did, by edge variant

    def remember(
        self, contributed: Mapping[PoolKey, Sequence[Contribution]], *, service_s: float, now_s: float
    ) -> None:
        """Takes up who audited before this process began, so that a quota is not divided among too few.

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
                self.audits(model_of(key), one.device, key.edge_digest)
        for model, devices in latest.items():
            self._variants[model] = {device: digest for device, (_, digest) in devices.items()}
            seen = self._seen[model] = Seen()
            for device, (latest_s, _) in sorted(devices.items(), key=lambda item: item[1]):
                seen.see(device, now_s - max(0.0, service_s - latest_s))
            seen.count(now_s)

    def asks(self, model: ModelKey, device: str, now_s: float) -> None:
        """A device asked for a version; `now_s` is monotonic time."""
        self._seen.setdefault(model, Seen()).see(device, now_s)

    def audits(self, model: ModelKey, device: str, edge_digest: str) -> None:
        """A device audited an edge variant, counted or not."""
        self._variants.setdefault(model, {})[device] = edge_digest
        self._auditing.setdefault(model, {}).setdefault(edge_digest, set()).add(device)

    def variant(self, model: ModelKey, device: str) -> str | None:
        """The edge variant that a device audited last; None where it never did."""
        return self._variants.get(model, {}).get(device)

    def of_the_hour(self, models: Iterable[ModelKey], now_s: float) -> int:
        """How many devices asked for these versions within the last hour, each counted once a version."""
        return sum(self._seen[model].count(now_s) for model in models if model in self._seen)

    def auditing(self, model: ModelKey, variant: str | None, contributors: Mapping[PoolKey, int]) -> int:
        """How many devices share a promise; where the edge variant is not known, the most that share any.

        Args:
            model: the version.
            variant: the edge variant's digest.
            contributors: of each pool, whichever replica heard of them.
        """
        counts = {digest: len(devices) for digest, devices in self._auditing.get(model, {}).items()}
        for key, devices in contributors.items():
            if model_of(key) == model:
                counts[key.edge_digest] = max(devices, counts.get(key.edge_digest, 0))
        return counts[variant] if variant is not None else max(counts.values(), default=1)


log = logger(__name__)

_DAY_S = 86_400.0
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class DeviceAlarm:
    """The alarm that one device reports for one version's promise.

    Attributes:
        edge_digest: of the edge variant whose promise it is.
        since_s: wall time at which this gateway first heard of it.
        last_s: and at which it last did.
        ended_s: at which the device said it no more; None while it does.
    """

    model: ModelKey
    device: str
    edge_digest: str
    since_s: float
    last_s: float
    ended_s: float | None = None


class DeviceAlarms:
    """Those of the last day, the longest silent first."""

    def __init__(self) -> None:
        self._alarms: OrderedDict[tuple[ModelKey, str], DeviceAlarm] = OrderedDict()
        self._heard_s: dict[tuple[ModelKey, str], float] = {}

    def hear(self, model: ModelKey, device: str, edge_digest: str, now_s: float, *, heard_s: float) -> None:
        """Takes up what a request says.

        Args:
            model: that it asks for.
            device: the device that sent the request.
            edge_digest: of the variant whose promise the device's own audits broke; "" where it says none.
            now_s: wall time, to be shown.
            heard_s: monotonic time, by which alarms are forgotten.
        """
        key = (model, device)
        known = self._alarms.get(key)
        if edge_digest:
            again = known is not None and known.ended_s is None and known.edge_digest == edge_digest
            since_s = known.since_s if known is not None and again else now_s
            self._note(DeviceAlarm(model, device, edge_digest, since_s, now_s), heard_s)
            if not again:
                log.error("a device's own audits broke its contract", **_facts(self._alarms[key]))
            while len(self._alarms) > _REMEMBERED:
                self._forget_first()
        elif known is not None and known.ended_s is None:
            self._note(replace(known, last_s=now_s, ended_s=now_s), heard_s)
            log.warning("a device's own alarm ended", **_facts(self._alarms[key]))

    def listed(self, now_s: float) -> list[DeviceAlarm]:
        """Those under way, then those that ended within the last day; of each the latest to begin first.

        Args:
            now_s: monotonic time.
        """
        while self._alarms and self._heard_s[next(iter(self._alarms))] <= now_s - _DAY_S:
            self._forget_first()
        return sorted(self._alarms.values(), key=_order)

    def _note(self, alarm: DeviceAlarm, heard_s: float) -> None:
        key = (alarm.model, alarm.device)
        self._alarms[key], self._heard_s[key] = alarm, heard_s
        self._alarms.move_to_end(key)

    def _forget_first(self) -> None:
        key, _ = self._alarms.popitem(last=False)
        del self._heard_s[key]


def _order(alarm: DeviceAlarm) -> tuple[bool, float, str]:
    return alarm.ended_s is not None, -alarm.since_s, alarm.device


def _facts(alarm: DeviceAlarm) -> dict[str, object]:
    model = alarm.model
    return {"device": alarm.device, "model": model.name, "version": model.version, "edge_digest": alarm.edge_digest}
