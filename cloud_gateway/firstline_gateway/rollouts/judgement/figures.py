"""One device's counts in a period, and the figures by which it is compared with others. Pure.

A figure has a weight in (0, 1]: a device that answered ten requests contributes less information than one that answered
a thousand, but more requests to one device do not reduce the differences between devices. With variance t between
devices and s / n within one, the best weight is proportional to n / (n + s / t). It is 0.5 at n = s / t, which
`_HALF_WEIGHT_ROWS` and its like estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts
from firstline_core.routing.drift import population_stability_index
from firstline_core.tasks.base import INVENTED, MISSED
from firstline_gateway.fleet.totals import Totals, gained

_HALF_WEIGHT_ROWS = 50.0
"""Rows, or audits, at which a share or a latency has the weight 0.5."""
_HALF_WEIGHT_HOURS = 24.0
"""Hours in service at which the crashes of a device have the weight 0.5."""
_HALF_WEIGHT_OBJECTS = 5.0
"""Expected objects at which the fall of a class on a device has the weight 0.5; of a rise, those and one more."""
_MOST_OBJECTS = 1e15  # a device that reports a period of almost no time would expect infinitely many
FALL = 1 / 1.2
RISE = 1 / FALL
"""Shares of a class's past objects to which they may fall and rise on a device."""
_FEWEST_LATENCIES = 20  # a 95th percentile of fewer is their maximum
_CRASHES_PER_DAY = 24.0  # a higher rate counts as this one


class Weighted(NamedTuple):
    """A figure of one device in one period, and its weight."""

    value: float
    weight: float


ByClass = Mapping[str, Weighted]
"""A figure by class; empty without data. `ALL` is the only class of a figure without classes; of a figure by class it
is any class that the device does not report."""
ALL = ""


@dataclass(frozen=True, slots=True)
class Period:
    """One device's counts between two reports.

    Args:
        counts: of the bundle in question, the later report's less the earlier one's.
        hours: between the two.
        crashes: number of processes that ended without a shutdown.
        stability_index: of the scores against the device's own before; None if unknown.
        falls, rises: how far the objects of each class changed against the device's own past, see `against_past`.
        silent: whether it was silent at the end; None if unknown.
    """

    counts: ModelCounts
    hours: float
    crashes: int = 0
    stability_index: float | None = None
    falls: ByClass = field(default_factory=dict)
    rises: ByClass = field(default_factory=dict)
    silent: bool | None = None


Figure = Callable[[Period], ByClass]


def classes_of(values: Iterable[ByClass]) -> list[str]:
    """Returns the classes of a figure on several devices, those with most weight first."""
    weights: dict[str, float] = {}
    for by_class in values:
        for name, (_, weight) in by_class.items():
            weights[name] = weights.get(name, 0.0) + weight
    named = [name for name in weights if name != ALL]
    return sorted(named, key=lambda name: (-weights[name], name)) or list(weights)


def _plain(of: Callable[[Period], Weighted | None]) -> Figure:
    """Returns a figure without classes."""

    def figure(period: Period) -> ByClass:
        found = of(period)
        return {ALL: found} if found is not None else {}

    return figure


def _weighted_share(part: float, whole: int) -> Weighted | None:
    return Weighted(min(1.0, part / whole), whole / (whole + _HALF_WEIGHT_ROWS)) if whole else None


def _share(part: Callable[[ModelCounts], float], whole: Callable[[ModelCounts], int]) -> Figure:
    return _plain(lambda period: _weighted_share(part(period.counts), whole(period.counts)))


def _event_share(direction: str) -> Figure:
    """Returns the share of audits with an event of this direction, of those in which it can occur, by class."""

    def figure(period: Period) -> ByClass:
        audits, losses = period.counts.event_audits, period.counts.event_losses
        mine = (name for name in audits if name.startswith(f"{direction} "))
        shares = {name.partition(" ")[2]: _weighted_share(losses.get(name, 0), audits[name]) for name in mine}
        return {name: share for name, share in shares.items() if share is not None}

    return figure


def latency_p95_ms(counts: ModelCounts) -> float | None:
    """Returns the 95th percentile, interpolated logarithmically within its bin; None for too few requests."""
    total = sum(counts.latency)
    if total < _FEWEST_LATENCIES:
        return None
    rank, below = 0.95 * total, 0.0
    for index, count in enumerate(counts.latency):
        if below + count >= rank:
            upper = LATENCY_BOUNDS_MS[min(index, len(LATENCY_BOUNDS_MS) - 1)]
            lower = LATENCY_BOUNDS_MS[index - 1] if index else upper / 2
            if index >= len(LATENCY_BOUNDS_MS):
                lower, upper = upper, upper * 2
            return lower * math.pow(upper / lower, (rank - below) / count)
        below += count
    return None


def _latency(period: Period) -> Weighted | None:
    p95_ms = latency_p95_ms(period.counts)
    total = sum(period.counts.latency)
    return Weighted(math.log(p95_ms), total / (total + _HALF_WEIGHT_ROWS)) if p95_ms is not None else None


def _crashes(period: Period) -> Weighted | None:
    if period.hours <= 0:
        return None
    weight = period.hours / (period.hours + _HALF_WEIGHT_HOURS)
    return Weighted(min(_CRASHES_PER_DAY, period.crashes / period.hours * 24), weight)


def _drift(period: Period) -> Weighted | None:
    return Weighted(period.stability_index, 1.0) if period.stability_index is not None else None


def _alarms(period: Period) -> Weighted | None:
    return Weighted(float(period.counts.alarm), 1.0) if period.hours > 0 or period.counts.rows else None


def _silence(period: Period) -> Weighted | None:
    return Weighted(float(period.silent), 1.0) if period.silent is not None else None


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "crashes": _plain(_crashes),
        "errors": _share(lambda counts: counts.errors, lambda counts: counts.rows),
        "latency": _plain(_latency),
        "escalations": _share(lambda counts: counts.escalated, lambda counts: counts.rows),
        "drift": _plain(_drift),
        "disagreement": _share(lambda counts: counts.losses, lambda counts: counts.telling_audits),
        "missed": _event_share(MISSED),
        "invented": _event_share(INVENTED),
        "objects": lambda period: period.falls,
        "surplus": lambda period: period.rises,
        "alarms": _plain(_alarms),
        "silence": _plain(_silence),
    }
)
"""By name. Higher is worse: crashes a day; shares of rows; the logarithm of the 95th percentile, so that a difference
is a ratio; the population stability index; the mean loss of audits in which an event can occur (the share that
disagrees where losses have no grades); by class the share that missed or invented it, how far its objects fell below
`FALL`, and how far they rose above `RISE`; whether a contract's alarm is active; whether the device was silent at the
end."""


class StageDevice(Struct, frozen=True):
    """One device in one stage. Audits in which no event can occur count as none.

    Attributes:
        after: the period since the stage's installations have ended; None without a report.
        before: a period before the stage; None if unknown.
        variant: of the model that it runs; "" without an edge model.
        board: its hardware, such as "Raspberry Pi 5 Model B Rev 1.0"; "" if unknown.
        audits_off: why it audits nothing, in words; "" if it audits.
    """

    after: Period | None
    before: Period | None = None
    variant: str = ""
    board: str = ""
    audits_off: str = ""

    @property
    def audited(self) -> bool:
        """Returns whether any of its answers was audited."""
        return self.after is not None and self.after.counts.telling_audits > 0


class Baseline(NamedTuple):
    """The period before an observed device's stage, and its counts when observation began, for comparison."""

    before: Period | None
    start: Totals


BEFORE_S = 86_400.0
"""Length of the period before a stage that figures are compared with: a day, because hours differ."""
_FEWEST_SCORES = 200


def between(bundle: str, start: Totals, end: Totals, *, audits_of: int | None = None) -> Period | None:
    """Returns a device's counts between two totals, see `gained`; None if it was not in service."""
    counts = gained(bundle, start, end, audits_of=audits_of)
    hours = max(0.0, end.service_s - start.service_s) / 3600
    if not hours and not counts.rows:
        return None
    return Period(counts, hours, max(0, end.unclean - start.unclean))


def compared(
    bundle: str,
    before: Period | None,
    start: Totals,
    end: Totals | None,
    *,
    silent: bool = False,
    audits_of: int | None = None,
) -> StageDevice:
    """Returns a device as the judgement compares it.

    Its scores are compared with its own scores before. Drift of the scene happens in both groups; the model causes the
    drift beyond that. A silent device counts as silent, because its earlier reports came from a healthy device. Audits
    are those of the version `audits_of`, or without it of all versions.
    """
    after = between(bundle, start, end, audits_of=audits_of) if end is not None else None
    after = after or Period(ModelCounts(bundle or "all", 1), 0.0)
    if before is not None:
        index = _stability_index(before.counts, after.counts)
        after = replace(against_past(before, after), stability_index=index)
    return StageDevice(replace(after, silent=silent), before)


def against_past(before: Period, after: Period) -> Period:
    """Returns the later period, with the changes of the objects per hour of each class: logarithms of ratios.

    A change within `FALL` and `RISE` is 0, so that a few devices on which a model sees nothing, or too much, are not
    offset by the noise of the others. A class falls only if the edge model reported it before. A class can also rise
    from no objects; a device that reported it in neither period has the rise of `ALL`, which is 0. The weight increases
    with the number of expected objects, which the model of the later period does not influence. One is added to both
    numbers, so that the ratio is finite.
    """
    if before.hours <= 0 or after.hours <= 0:
        return after
    falls, rises = {}, {ALL: Weighted(0.0, _rise_weight(0.0))}
    for name in dict.fromkeys((*before.counts.objects, *after.counts.objects)):
        expected = min(_MOST_OBJECTS, before.counts.objects.get(name, 0) * after.hours / before.hours)
        change = math.log((after.counts.objects.get(name, 0) + 1) / (expected + 1))
        rises[name] = Weighted(max(0.0, change - math.log(RISE)), _rise_weight(expected))
        if expected > 0:
            weight = expected / (expected + _HALF_WEIGHT_OBJECTS)
            falls[name] = Weighted(max(0.0, math.log(FALL) - change), weight)
    return replace(after, falls=falls, rises=rises)


def _rise_weight(expected: float) -> float:
    return (expected + 1) / (expected + 1 + _HALF_WEIGHT_OBJECTS)


def _stability_index(before: ModelCounts, after: ModelCounts) -> float | None:
    few = min(sum(before.scores), sum(after.scores)) < _FEWEST_SCORES
    if few or len(before.scores) != len(after.scores) or len(after.scores) < 2:
        return None
    return population_stability_index(before.scores, after.scores)
