"""Contract kept: does the certificate keep its word, and how much does it keep at the edge?

Each labelled pool is taken as the population, so that the true risk of any threshold is known. Calibration samples are
drawn from it with replacement, and the whole procedure of `firstline certify` is repeated on each, for a bundle whose
own score is the margin. For comparison, a threshold is tuned without a certificate: the loosest one whose
risk on the sample is at most epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure
from bench.pools import CIFAR10, TRAINSAMPLE, Pool
from bench.routing.parts import Job
from bench.routing.population import Population, at_most
from firstline.workbench.selection import EdgeRows, select
from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score
from firstline_core.routing.certification import certify
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES

SIZES = (650, 2500)
CALIBRATIONS = 500  # of each size
PROMISES = tuple((epsilon, delta) for epsilon in (0.05, 0.02) for delta in (0.1, 0.05))
AIMS = {650: 0.7, 2500: 0.9}
"""Of the oracle's share, on the CIFAR pair at epsilon 5 %."""

_OWN = Score("margin")
_SEED = 20261121


@dataclass(slots=True)
class Tally:
    """What came of one promise over all calibrations.

    Args:
        broken, naive_broken: calibrations whose threshold has a true risk above epsilon.
        kept: true share kept, summed over the calibrations.
        oracle: share that the margin's oracle keeps.
    """

    pool: str
    loss: str
    n: int
    epsilon: float
    delta: float
    calibrations: int
    oracle: float
    broken: int = 0
    naive_broken: int = 0
    kept: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.pool}: {self.loss} <= {self.epsilon:.0%} at {1 - self.delta:.0%}, {self.n} rows"

    @property
    def power(self) -> float | None:
        """Share kept, of what the margin's oracle keeps."""
        return self.kept / self.calibrations / self.oracle if self.oracle else None

    @property
    def aim(self) -> float | None:
        """Of `power`, where there is one; for either loss."""
        return AIMS.get(self.n) if self.epsilon == 0.05 and self.pool == CIFAR10.name else None


def jobs(pools: Mapping[str, Pool]) -> list[Job]:
    return [
        Job(f"contract: {pool.name}, {loss}, {n} rows", partial(measure, pool, loss, n, CALIBRATIONS))
        for n in sorted(SIZES, reverse=True)  # the longest first
        for pool in pools.values()
        if pool.name != TRAINSAMPLE.name
        for loss in pool.losses()
    ]


def measure(pool: Pool, loss: str, n: int, calibrations: int) -> list[Tally]:
    """Repeats the procedure; every promise on the same samples."""
    losses = pool.losses()[loss]
    truths = pool.labels if loss == "harm" else pool.full.argmax(axis=1)
    task, edge = Classification(tuple(map(str, range(pool.edge.shape[1])))), {PROBABILITIES: pool.edge}
    margin = scorer(task, _OWN)(edge, {})
    plain = Population.of(margin, losses)
    tallies = {
        (epsilon, delta): Tally(pool.name, loss, n, epsilon, delta, calibrations, plain.oracle(epsilon))
        for epsilon, delta in PROMISES
    }
    for rows in np.random.default_rng(_SEED).integers(0, len(losses), (calibrations, n)):
        own_scores = margin[rows].astype(np.float64)
        answers = EdgeRows(task, {PROBABILITIES: pool.edge[rows]}, {})
        chosen = select(answers, losses[rows], targets=truths[rows], own=_OWN, own_scores=own_scores, seed=_SEED)
        scores, certifying = chosen.scores[chosen.rest], losses[rows[chosen.rest]]
        truth = plain if chosen.score == _OWN else Population.of(scorer(task, chosen.score)(edge, {}), losses)
        sample = Population.of(margin[rows], losses[rows])
        for (epsilon, delta), tally in tallies.items():
            found = certify(scores, certifying, epsilon, delta, starts=chosen.starts, seed=_SEED)
            if found.threshold is not None:
                share, risk = truth.at(found.threshold)
                tally.kept += share
                tally.broken += risk > epsilon
            passing = sample.risks <= epsilon
            tally.naive_broken += _loosest(sample, passing, plain)[1] > epsilon
    return list(tallies.values())


def _loosest(sample: Population, passing: NDArray[np.bool_], truth: Population) -> tuple[float, float]:
    """True share and true risk of the loosest passing threshold."""
    return truth.at(float(sample.thresholds[np.flatnonzero(passing)[-1]])) if passing.any() else (0.0, 0.0)


def figures(records: Sequence[Tally]) -> list[Figure]:
    found = []
    for tally in records:
        what, trials, power, aim = tally.name, tally.calibrations, tally.power, tally.aim
        holds = None if aim is None or power is None else power >= aim
        found += [
            at_most(f"{what}: contract broken", tally.broken, trials, tally.delta, "calibrations"),
            Figure(f"{what}: contract broken by naive tuning", tally.naive_broken / trials, "share of calibrations"),
            Figure(f"{what}: kept", tally.kept / trials, "share of answers"),
            Figure(
                f"{what}: kept, of what the margin's oracle keeps",
                power,
                "ratio",
                None if aim is None else f">= {aim}",
                holds,
            ),
        ]
    return found
