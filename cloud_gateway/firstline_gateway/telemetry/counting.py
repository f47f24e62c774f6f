"""Answers are counted a moment after they went out, those of that moment together: no answer waits for it.

A scrape counts pending answers first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from firstline_core.clock import Clock
from firstline_core.telemetry.statistics import ModelStatistics, OverheadTimes
from firstline_core.types import ModelKey, Reason, Status, Tier
from firstline_gateway.telemetry.metrics import GatewayMetrics
from firstline_gateway.telemetry.statistics import Statistics

_DELAY_S, _TOGETHER = 0.05, 512

Said = tuple[Tier, Reason, Status]
"""What an answer says of itself that is counted."""


class Counting:
    """Belongs to one event loop.

    Args:
        metrics: of the process; has what waits counted before it is read.
        statistics: of each model.
        clock: for when each answered last.
    """

    def __init__(self, metrics: GatewayMetrics, statistics: Statistics, clock: Clock) -> None:
        self._metrics = metrics
        self._statistics = statistics
        self._clock = clock
        self._waiting: list[tuple[ModelKey, Said, float]] = []
        self._last_s: dict[ModelKey, float] = {}
        metrics.before_reading = self.flush

    def told(self, key: ModelKey, apart: OverheadTimes | None) -> ModelStatistics:
        """Of one version, with all that was answered; see `Statistics.told`."""
        self.flush()
        return self._statistics.told(key, apart)

    def of(self, key: ModelKey) -> ModelStatistics:
        """Of one version, to count there what has nothing to do with answers."""
        return self._statistics.of(key)

    def answered(self, key: ModelKey, said: Said, seconds: float) -> None:
        """An answer was made, and took so long."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_DELAY_S, self.flush)
        self._waiting.append((key, said, seconds))
        self._last_s[key] = self._clock.wall_s()
        if len(self._waiting) >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Counts what waits."""
        waiting, self._waiting = self._waiting, []
        together: defaultdict[tuple[ModelKey, Said], list[float]] = defaultdict(list)
        for key, said, seconds in waiting:
            together[key, said].append(seconds)
        for (key, said), taken in together.items():
            self._metrics.observe_all(said, taken)
            self._statistics.of(key).answered(sum(taken), self._last_s[key], len(taken))
