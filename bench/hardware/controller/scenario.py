"""What runs on the simulated device, what is stated of it, and what arrives."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from firstline_core.adaptation.controller import Patience
from firstline_core.adaptation.ladder import Rung, ladder

HOUR_S = 3600.0


class Measurement(NamedTuple):
    """One variant, as `evaluate` and `certify --epsilon 0.1 --delta 0.1` found it on the CIFAR-10 pair.

    Attributes:
        row_ms: one row on one core of the machine that measured, processing included.
        kept: share of the rows that its certificate keeps.
        disagree: share of the kept ones in which the full model says otherwise.
    """

    variant: str
    row_ms: float
    kept: float
    disagree: float


EPSILON = 0.1
VARIANTS = (
    Measurement("resnet56", 1.895, 1.0, 0.0),
    Measurement("resnet20", 0.682, 0.796, 0.0985),
    Measurement("resnet8-int8", 0.215, 0.607, 0.0985),
)


@dataclass(frozen=True, slots=True)
class Stated:
    """What nobody measured here.

    Attributes:
        slower: how many times longer a row takes on the board's core.
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

    slower: float = 10.0
    warmer_c: float = 13.0
    idle_w: float = 2.7
    core_w: float = 0.925
    steady_per_s: float = 84.0
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
    patience: Patience = field(default_factory=Patience)

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


def rungs_of(stated: Stated) -> tuple[Rung, ...]:
    """The ladder on this board."""
    return ladder(
        Rung(
            each.variant,
            each.row_ms * stated.slower,
            energy_mj=each.row_ms * stated.slower * stated.core_w,
            merit=each.kept,
        )
        for each in VARIANTS
    )
