"""The devices of each version, in memory: active devices, and audited edge variants."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from firstline_core.types import ModelKey
from firstline_core.units import HOUR_S
from firstline_gateway.contracts.pool import PoolKey, model_of
from firstline_gateway.contracts.records import Contribution


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
        """Returns the number of these devices."""
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
