"""What runs on the simulated device, what is stated of it, and what arrives."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from firstline_core.adaptation.controller import StepTiming
from firstline_core.adaptation.ladder import Rung, build_ladder

HOUR_S = 3600.0


EPSILON, DELTA = 0.1, 0.1
VARIANTS = ("resnet56", "resnet20", "resnet8-int8")
"""The largest first: ResNet-56 is the full model too, and keeps every row of its own."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of them, with what it said of rows that neither made nor certified anything.

    Attributes:
        name: its id.
        row_ms: on the board's core.
        certified: share of the calibration rows that its certificate keeps, which the choice goes by.
        keeps: (n,) whether the certificate keeps its answer to this row.
        disagrees: (n,) whether the full model says otherwise.
    """

    name: str
    row_ms: float
    certified: float
    keeps: NDArray[np.bool_]
    disagrees: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Stated:
    """What nobody measured here.

    Attributes:
        row_ms: that a row of the largest takes on the board's core; the others' times stand to it as measured here.
        warmer_c: how much warmer it is around the board than where its heat was measured.
        idle_w, core_w: of the board, and of each busy core (540 and 1280 mA at 5 V idle and with four busy cores).
        steady_per_s, steady_deadline_ms: rows that arrive all the time, with no time to ask anybody else.
        burst_per_s, burst_deadline_ms: rows that arrive in bursts beside them.
        burst_s, every_s: a burst lasts so long, and the next begins so long after it began.
        link_ms: the full model takes by the link, at the median.
        link_per_s: rows that the link carries.
        joules_sent: that a row takes to send.
        hours: that it lasts.
        seed: of arrivals and of what models say.
    """

    row_ms: float = 19.0
    warmer_c: float = 19.0
    idle_w: float = 2.7
    core_w: float = 0.925
    steady_per_s: float = 72.0
    steady_deadline_ms: float = 70.0
    burst_per_s: float = 165.0
    burst_deadline_ms: float = 250.0
    burst_s: float = 120.0
    every_s: float = 240.0
    link_ms: float = 60.0
    link_per_s: float = 100.0
    joules_sent: float = 0.006
    hours: float = 1.0
    seed: int = 20261123
    timing: StepTiming = field(default_factory=StepTiming)

    def in_burst(self, at_s: float) -> bool:
        return at_s % self.every_s >= self.every_s - self.burst_s


def arrivals(stated: Stated) -> Iterator[tuple[float, float]]:
    """When rows come, and the milliseconds until their deadlines: two streams, each of Poisson's."""
    stop_s = stated.hours * HOUR_S
    steady = _poisson(stated.seed + 1, stated.steady_per_s, stated.steady_deadline_ms, stop_s)
    bursts = _poisson(stated.seed + 2, stated.burst_per_s, stated.burst_deadline_ms, stop_s)
    return heapq.merge(steady, (row for row in bursts if stated.in_burst(row[0])))


def _poisson(seed: int, per_s: float, deadline_ms: float, stop_s: float) -> Iterator[tuple[float, float]]:
    rng, at_s = random.Random(seed), 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < stop_s:
        yield at_s, deadline_ms


def rungs_of(variants: Sequence[Variant], stated: Stated) -> tuple[Rung, ...]:
    """The ladder on this board."""
    return build_ladder(
        Rung(each.name, each.row_ms, energy_mj=each.row_ms * stated.core_w, merit=each.certified) for each in variants
    )
