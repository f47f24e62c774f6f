"""The audits' test for many streams at once: what `firstline_core.routing.audit` computes, on arrays.

`check_against_update` holds it to the shipped test.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from firstline_core.routing import audit

Floats = NDArray[np.float64]
Stream = Callable[[float], Floats]
"""From a risk to the next audit's losses, one for each run."""


class Tests:
    """The e-values of many runs at once.

    Args:
        epsilon: as promised.
        runs: how many.
    """

    def __init__(self, epsilon: float, runs: int) -> None:
        self.epsilon = epsilon
        self.bets = np.array(audit.begin(epsilon).bets)[:, None]
        # A single start is the mixture of which all money starts with the first audit.
        self.wealth = np.zeros((self.bets.size, runs))
        self.audits = 0

    def update(self, losses: Floats) -> Floats:
        starting = audit.waiting(self.audits) - audit.waiting(self.audits + 1)
        self.audits += 1
        self.wealth = np.minimum(1e300, (1 + self.bets * (losses - self.epsilon)) * (self.wealth + starting))
        e_values: Floats = self.wealth.mean(axis=0) + audit.waiting(self.audits)
        return e_values


def constant(random: np.random.Generator, runs: int) -> Stream:
    """Audits of answers drawn from a population of the risk."""
    return lambda risk: (random.random(runs) < risk).astype(np.float64)


def delays(
    test: Tests, delta: float, stream: Stream, before: tuple[float, int], after: tuple[float, int]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Audits from the shift to the first alarm (infinite where there is none), and which runs alarmed before it.

    Args:
        test: of as many runs as the stream has.
        delta: the level of an alarm.
        stream: where the audits come from.
        before: risk and audits before the shift.
        after: risk and audits after it.
    """
    found = np.full(test.wealth.shape[1], np.inf)
    early = np.zeros(test.wealth.shape[1], bool)
    for _ in range(before[1]):
        early |= test.update(stream(before[0])) * delta >= 1
    for at in range(1, after[1] + 1):
        alarmed = test.update(stream(after[0])) * delta >= 1
        found[alarmed & np.isinf(found)] = at
    return found, early


def check_against_update(epsilon: float, stream: Stream) -> None:
    """Fails where this file does not compute what a device does.

    Args:
        epsilon: as promised.
        stream: of one run; 2,000 audits of it, at twice the risk that was promised.
    """
    test, state = Tests(epsilon, 1), audit.begin(epsilon)
    for _ in range(2_000):
        losses = stream(2 * epsilon)
        seen = test.update(losses)[0]
        state = audit.update(state, losses[0])
        if not math.isclose(seen, audit.e_value(state), rel_tol=1e-6):
            raise AssertionError(f"{seen} here, {audit.e_value(state)} from audit.update")
