"""How often, and how long, each model on this device answered: Triton's statistics. What is private is not counted."""

from __future__ import annotations

from firstline_core.clock import Clock
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferRequest, InferResponse, Privacy, Tier
from firstline_edge.models import HeldModel

_EDGE, _CACHE, _LOCAL_ONLY = Tier.EDGE, Tier.CACHE, Privacy.LOCAL_ONLY
_AT_ONCE = (0.0,)


class Counted:
    """Of one process, from its start on.

    Args:
        clock: whose wall time answers are dated by.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[tuple[str, str], ModelStatistics] = {}

    def of(self, name: str, version: str) -> ModelStatistics:
        """Of one version, zeros where nothing was asked of it yet."""
        found = self._models.get((name, version))
        if found is None:
            found = self._models[name, version] = ModelStatistics(name, version)
        return found

    def answered(self, request: InferRequest, response: InferResponse, seconds: float) -> None:
        """Counts an answer, and by its attempts what the device's own model and cache did for it."""
        answer = response.answer
        if request.privacy is _LOCAL_ONLY or answer is None:
            return
        found = self.of(response.model, response.version)
        found.answered(seconds, self._clock.wall_s())
        hit = False
        for tried in answer.attempts:
            if tried.outcome != "ok":
                continue
            if tried.tier is _CACHE:
                hit = True
                found.cache_hit.add(tried.ms / 1000)
            elif tried.tier is _EDGE:
                found.ran(request.rows, tried.ms / 1000, _AT_ONCE)
        if not hit:
            found.cache_miss.add(0.0)

    def refused(self, request: InferRequest, held: HeldModel, seconds: float) -> None:
        """Counts a request that was not answered."""
        if request.privacy is not _LOCAL_ONLY:
            self.of(held.manifest.name, held.version).fail.add(seconds)
