"""Which devices ask for each version, and which of them audit which edge variant. In memory; no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from firstline_core.types import ModelKey
from firstline_gateway.contracts.pool import PoolKey, model_of
from firstline_gateway.contracts.quota import Seen
from firstline_gateway.contracts.store import Contribution


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
