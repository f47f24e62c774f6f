"""Contract kept: does the certificate keep its word, and how much does it keep at the edge?

Each labelled pool is taken as the population, so that the true risk of any threshold is known. Calibration samples are
drawn from it with replacement, and the whole procedure is repeated on each: from 1,000 rows on a selection part chooses
or fits the score and places the starts, below that the margin is taken as it is and every row certifies. Beside it the
naive way: the loosest threshold whose risk on the sample is at most epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from figures import Figure
from firstline.workbench.scores import choose_score
from firstline_core.routing import binomial
from firstline_core.routing.certificate import Start, certify, split, starts_at
from firstline_core.routing.confidence import Probabilities, Scores, score
from pools import CIFAR10, TRAINSAMPLE, Pool
from routing.margins import at_most, most
from routing.parts import Effort, Job, Table
from routing.population import Population

SIZES = (650, 2500)
PROMISES = tuple((epsilon, delta) for epsilon in (0.05, 0.02) for delta in (0.1, 0.05))
AIMS = {650: 0.7, 2500: 0.9}
"""Of the oracle's share, on the CIFAR pair at epsilon 5 %."""

_SELECT_FROM, _SELECT_FRACTION = 1000, 0.1
_SEED = 20261121


@dataclass(slots=True)
class Tally:
    """What came of one promise over all calibrations.

    Args:
        broken, naive_broken: calibrations whose threshold has a true risk above epsilon.
        certified: calibrations with a threshold.
        learned: calibrations that chose the learned score.
        kept: true share kept, summed over the calibrations; so are the next two.
        own_oracle: what the chosen score's oracle keeps.
        ceiling: what the loosest threshold that passes by itself, at full delta, keeps; that is not valid.
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
    certified: int = 0
    learned: int = 0
    kept: float = 0.0
    own_oracle: float = 0.0
    ceiling: float = 0.0

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


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    return [
        Job(f"contract: {pool.name}, {loss}, {n} rows", partial(measure, pool, loss, n, effort.calibrations))
        for n in sorted(SIZES, reverse=True)  # the longest first
        for pool in pools.values()
        if pool.name != TRAINSAMPLE.name
        for loss in pool.losses()
    ]


def measure(pool: Pool, loss: str, n: int, calibrations: int) -> list[Tally]:
    """Repeats the procedure; every promise on the same samples."""
    losses = pool.losses()[loss]
    margin = score("margin", pool.edge)
    plain = Population.of(margin, losses)
    tallies = {
        (epsilon, delta): Tally(pool.name, loss, n, epsilon, delta, calibrations, plain.oracle(epsilon))
        for epsilon, delta in PROMISES
    }
    for rows in np.random.default_rng(_SEED).integers(0, len(losses), (calibrations, n)):
        scores, starts, rest, learned = _chosen(pool.edge, losses, margin, rows)
        truth = plain if scores is margin else Population.of(scores, losses)
        sample = Population.of(margin[rows], losses[rows])
        for (epsilon, delta), tally in tallies.items():
            tally.learned += learned
            found = certify(scores[rest], losses[rest], epsilon, delta, starts=starts)
            if found.threshold is not None:
                share, risk = truth.at(found.threshold)
                tally.certified += 1
                tally.kept += share
                tally.broken += risk > epsilon
            tally.own_oracle += truth.oracle(epsilon)
            passing = sample.risks <= epsilon
            tally.naive_broken += _loosest(sample, passing, plain)[1] > epsilon
            kept = np.round(sample.shares[passing] * n)
            passing[passing] = binomial.cdf(np.round(sample.risks[passing] * kept), kept, epsilon) <= delta
            tally.ceiling += _loosest(sample, passing, plain)[0]
    return list(tallies.values())


def _chosen(
    edge: Probabilities, losses: NDArray[np.bool_], margin: Scores, rows: NDArray[np.intp]
) -> tuple[Scores, tuple[Start, ...] | None, NDArray[np.intp], bool]:
    """Step by step what a user's data goes through: scores of the population, starts, certification rows."""
    if len(rows) < _SELECT_FROM:
        return margin, None, rows, False
    selection, rest = split(len(rows), _SELECT_FRACTION, _SEED)
    choice = choose_score(edge[rows[selection]], losses[rows[selection]], seed=_SEED)
    scores = choice.score(edge)
    return scores, starts_at(scores[rows[selection]]), rows[rest], choice.learned is not None


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
            Figure(f"{what}: certified", tally.certified / trials, "share of calibrations"),
            Figure(f"{what}: kept by the margin's oracle", tally.oracle, "share of answers"),
            Figure(f"{what}: kept", tally.kept / trials, "share of answers"),
            Figure(
                f"{what}: kept, of what the margin's oracle keeps",
                power,
                "ratio",
                None if aim is None else f">= {aim}",
                holds,
            ),
            Figure(
                f"{what}: kept, of what the chosen score's oracle keeps",
                tally.kept / tally.own_oracle if tally.own_oracle else None,
                "ratio",
            ),
            Figure(
                f"{what}: ceiling: every threshold of the margin at full delta, which is not valid",
                tally.ceiling / trials / tally.oracle if tally.oracle else None,
                "ratio",
            ),
            Figure(f"{what}: learned score chosen", tally.learned / trials, "share of calibrations"),
        ]
    return found


def tables(records: Sequence[Tally]) -> list[Table]:
    columns = ("pair", "loss", "rows", "eps", "delta", "broken", "allowed", "naive", "kept", "of oracle", "aim")
    rows = [
        (
            tally.pool,
            tally.loss,
            str(tally.n),
            f"{tally.epsilon:.0%}",
            f"{tally.delta:.0%}",
            f"{tally.broken / tally.calibrations:.1%}",
            f"{most(tally.calibrations, tally.delta) / tally.calibrations:.1%}",
            f"{tally.naive_broken / tally.calibrations:.1%}",
            f"{tally.kept / tally.calibrations:.1%}",
            "" if tally.power is None else f"{tally.power:.2f}",
            "" if tally.aim is None else f"{tally.aim:.2f}",
        )
        for tally in records
    ]
    return [
        Table("Contract kept: calibrations that broke their promise, and the share kept at the edge", columns, rows)
    ]
