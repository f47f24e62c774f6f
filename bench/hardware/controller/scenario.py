"""The variants on the simulated device, the assumed constants, and the arrivals."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from firstline_core.adaptation.controller import StepTiming
from firstline_core.adaptation.ladder import Rung, build_ladder
from firstline_core.units import HOUR_S

EPSILON, DELTA = 0.1, 0.1
VARIANTS = ("resnet56", "resnet20", "resnet8-int8")
"""The largest first: ResNet-56 is also the full model, so all its answers are accepted."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant with its answers to rows that were used neither for training nor for its certificate.

    Attributes:
        name: its id.
        row_ms: time of one row on one core of the board.
        certified: share of the calibration rows that its certificate accepts, which the choice uses.
        keeps: (n,) whether the certificate accepts its answer to this row.
        disagrees: (n,) whether the full model answers differently.
    """

    name: str
    row_ms: float
    certified: float
    keeps: NDArray[np.bool_]
    disagrees: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The assumptions of the simulation.

    Attributes:
        row_ms: time of one row of each of `VARIANTS` on one core of the board. Their ratios are those of a measured run
            (2026-11-25, one x86-64 core). They are not measured in each run, because the load of the machine would
            change the scenario.
        warmer_c: ambient temperature minus that of the room where the board's temperature was measured.
        core_w: power of each busy core (540 and 1280 mA at 5 V idle and with four busy cores).
        steady_per_s, steady_deadline_ms: rate and deadline of rows that always arrive, too urgent for the full model.
        burst_per_s, burst_deadline_ms: rate and deadline of additional rows during bursts.
        burst_s, every_s: duration and period of bursts.
        link_ms: median time of an answer of the full model over the link.
        link_per_s: capacity of the link (rows per second).
        joules_sent: energy to send one row.
        seed: seed of the arrivals and of the choice of images.
    """

    row_ms: tuple[float, float, float] = (19.0, 7.5, 2.4)
    warmer_c: float = 19.0
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
    seed: int = 20261123
    timing: StepTiming = field(default_factory=StepTiming)


def arrivals(scenario: Scenario) -> Iterator[tuple[float, float]]:
    """Yields arrival times (s) and time limits (ms) of rows: two Poisson processes."""
    steady = _poisson(scenario.seed + 1, scenario.steady_per_s, scenario.steady_deadline_ms)
    bursts = _poisson(scenario.seed + 2, scenario.burst_per_s, scenario.burst_deadline_ms)
    begins_s = scenario.every_s - scenario.burst_s
    return heapq.merge(steady, (row for row in bursts if row[0] % scenario.every_s >= begins_s))


def _poisson(seed: int, per_s: float, deadline_ms: float) -> Iterator[tuple[float, float]]:
    rng, at_s = random.Random(seed), 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < HOUR_S:
        yield at_s, deadline_ms


def rungs_of(variants: Sequence[Variant], scenario: Scenario) -> tuple[Rung, ...]:
    """Returns the ladder of variants on this board."""
    return build_ladder(
        Rung(each.name, each.row_ms, energy_mj=each.row_ms * scenario.core_w, merit=each.certified) for each in variants
    )
