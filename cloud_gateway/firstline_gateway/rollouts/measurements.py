"""Devices' counts before a stage and since its installations ended, for the judgement. Pure."""

from __future__ import annotations

from dataclasses import replace

from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.routing.drift import population_stability_index
from firstline_gateway.fleet.totals import Totals, gained
from firstline_gateway.rollouts.judgement.periods import Period
from firstline_gateway.rollouts.judgement.verdict import Device

BEFORE_S = 86_400.0
"""How long the time before a stage is that figures are held against: a day, with its hours of all kinds."""

_FEWEST_SCORES = 200


def between(bundle: str, start: Totals, end: Totals) -> Period | None:
    """Returns a device's counts between two totals; None if it was not in service."""
    counts = gained(bundle, start, end)
    hours = max(0.0, end.service_s - start.service_s) / 3600
    if not hours and not counts.rows:
        return None
    return Period(counts, hours, max(0, end.unclean - start.unclean))


def compared(bundle: str, before: Period | None, start: Totals, end: Totals | None, *, silent: bool = False) -> Device:
    """A device as the judgement takes it.

    Its scores are held against its own before: that they drift with the scene happens in both groups, and what they
    drift by more is the model's doing. One that says nothing any more counts as silent, for whatever it said before
    that came from a device that was well.
    """
    found = between(bundle, start, end) if end is not None else None
    after = found or Period(ModelCounts(bundle or "all", 1), 0.0)
    index = _stability_index(before.counts, after.counts) if before is not None else None
    return Device(replace(after, stability_index=index, silent=silent), before)


def _stability_index(before: ModelCounts, after: ModelCounts) -> float | None:
    few = min(sum(before.scores), sum(after.scores)) < _FEWEST_SCORES
    if few or len(before.scores) != len(after.scores) or len(after.scores) < 2:
        return None
    return population_stability_index(before.scores, after.scores)
