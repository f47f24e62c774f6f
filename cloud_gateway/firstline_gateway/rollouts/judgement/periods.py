"""One device's counts in a period, and the figures by which it is compared with others.

A figure comes with a weight in (0, 1]: a device that answered ten requests tells less than one that answered a
thousand, but a thousand devices' differences do not go away by asking one of them more often. With variance t between
devices and s / n within one, the best weight is proportional to n / (n + s / t); `_HALF` is s / t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts

_HALF = 50.0
_HALF_HOURS = 24.0
_FEWEST_LATENCIES = 20  # a 95th percentile of fewer is their maximum
_CRASHES_PER_DAY = 24.0  # more is all the same


@dataclass(frozen=True, slots=True)
class Period:
    """One device's counts between two reports.

    Args:
        counts: of the bundle in question, the later report's less the earlier one's.
        hours: between the two.
        crashes: processes that ended without a word meanwhile.
        stability_index: of the scores against the device's own before; None if unknown.
        silent: whether it was silent at the end; None if unknown.
    """

    counts: ModelCounts
    hours: float
    crashes: int = 0
    stability_index: float | None = None
    silent: bool | None = None


Figure = Callable[[Period], tuple[float, float] | None]
"""A period's value and weight; None where it has nothing to say."""


def _share(part: Callable[[ModelCounts], int], whole: Callable[[ModelCounts], int]) -> Figure:
    def figure(period: Period) -> tuple[float, float] | None:
        asked = whole(period.counts)
        return (min(1.0, part(period.counts) / asked), asked / (asked + _HALF)) if asked else None

    return figure


def latency_p95_ms(counts: ModelCounts) -> float | None:
    """The 95th percentile, on a logarithmic scale within its bin; None of too few requests."""
    total = sum(counts.latency)
    if total < _FEWEST_LATENCIES:
        return None
    wanted, below = 0.95 * total, 0.0
    for index, count in enumerate(counts.latency):
        if below + count >= wanted:
            upper = LATENCY_BOUNDS_MS[min(index, len(LATENCY_BOUNDS_MS) - 1)]
            lower = LATENCY_BOUNDS_MS[index - 1] if index else upper / 2
            if index >= len(LATENCY_BOUNDS_MS):
                lower, upper = upper, upper * 2
            return lower * math.pow(upper / lower, (wanted - below) / count)
        below += count
    return None


def _latency(period: Period) -> tuple[float, float] | None:
    p95_ms = latency_p95_ms(period.counts)
    total = sum(period.counts.latency)
    return (math.log(p95_ms), total / (total + _HALF)) if p95_ms is not None else None


def _crashes(period: Period) -> tuple[float, float] | None:
    if period.hours <= 0:
        return None
    return min(_CRASHES_PER_DAY, period.crashes / period.hours * 24), period.hours / (period.hours + _HALF_HOURS)


def _drift(period: Period) -> tuple[float, float] | None:
    return (period.stability_index, 1.0) if period.stability_index is not None else None


def _alarms(period: Period) -> tuple[float, float] | None:
    return (float(period.counts.alarm), 1.0) if period.hours > 0 or period.counts.rows else None


def _silence(period: Period) -> tuple[float, float] | None:
    return (float(period.silent), 1.0) if period.silent is not None else None


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "crashes": _crashes,
        "errors": _share(lambda counts: counts.errors, lambda counts: counts.rows),
        "latency": _latency,
        "escalations": _share(lambda counts: counts.escalated, lambda counts: counts.rows),
        "drift": _drift,
        "disagreement": _share(lambda counts: counts.disagreed, lambda counts: counts.audited),
        "alarms": _alarms,
        "silence": _silence,
    }
)
"""By name. Higher is worse: crashes a day; shares of rows; the logarithm of the 95th percentile, so that a difference
is a ratio; the population stability index; the share of audits that disagreed; whether a contract's alarm stands;
whether the device was not heard of any more."""
