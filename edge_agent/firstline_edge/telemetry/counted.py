"""How often, and how long, each model on this device answered: Triton's statistics. `recorder.py` keeps it."""

from __future__ import annotations

from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, Tier

_EDGE, _CACHE = Tier.EDGE, Tier.CACHE
_AT_ONCE = (0.0,)


class Counted:
    """Of one process, from its start on."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], ModelStatistics] = {}

    def of(self, name: str, version: str) -> ModelStatistics:
        """Of one version, zeros where nothing was asked of it yet."""
        found = self._models.get((name, version))
        if found is None:
            found = self._models[name, version] = ModelStatistics(name, version)
        return found

    def answered(self, request: InferRequest, response: InferResponse, seconds: float, wall_s: float) -> None:
        """Counts an answer, and by its attempts what the device's own model and cache did for it."""
        answer = response.answer
        if answer is None:
            return
        found = self.of(response.model, response.version)
        found.answered(seconds, wall_s)
        hit = ran = False
        for tried in answer.attempts:
            if tried.outcome != "ok":
                continue
            if tried.tier is _CACHE:
                hit = True
                found.cache_hit.add(tried.ms / 1000)
            elif tried.tier is _EDGE:
                ran = True
                found.ran(request.rows, tried.ms / 1000, _AT_ONCE)
        if not hit:
            found.cache_miss.add(0.0)
        if not ran:
            found.queue.count += 1  # as Triton counts what it answers from its cache

    def refused(self, name: str, version: str, seconds: float) -> None:
        """Counts a request that was not answered."""
        self.of(name, version).fail.add(seconds)
