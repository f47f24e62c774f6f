"""How often, and how long, each full model ran in this process: Triton's statistics."""

from __future__ import annotations

from collections.abc import Sequence

from firstline_core.telemetry.statistics import ModelStatistics, OverheadTimes
from firstline_core.types import ModelKey


class Statistics:
    """Of every model, from the start of the process on."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, ModelStatistics] = {}

    def of(self, key: ModelKey) -> ModelStatistics:
        """Of one version, zeros where nothing was asked of it yet."""
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelStatistics(key.name, str(key.version))
        return found

    def told(self, key: ModelKey, apart: OverheadTimes | None) -> ModelStatistics:
        """As `of`, with what the engine measured apart."""
        found = self.of(key)
        if apart is not None:
            found.apart = apart
        return found

    def ran(self, key: ModelKey, rows: int, seconds: float, waits_s: Sequence[float]) -> None:
        """Counts a batch; see `ModelStatistics.ran`."""
        self.of(key).ran(rows, seconds, waits_s)
