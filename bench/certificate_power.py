"""Does the certificate keep its word, and how much does it keep at the edge? Measured where the truth is known.

    python bench/certificate_power.py [--data DIR] [--cache DIR] [--trials N]

Each labelled pool of a real pair is taken as the population, so that the true risk of any threshold is known.
Calibration samples are drawn from it with replacement, and the whole procedure of `firstline certify` is repeated on
each, for a bundle whose own score is the margin. Beside it the naive way: the loosest threshold whose risk on the data
is at most epsilon; and a plain walk, from strict to loose over fixed margins, until the first that is not shown. Prints
every figure, and writes them to bench/results/certificate.json. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import Figure, report
from numpy.typing import NDArray
from pools import Pool, collect

from firstline.workbench.selection import select
from firstline_core.bundle.manifest import Score
from firstline_core.bundle.scorer import scorer
from firstline_core.routing import binomial
from firstline_core.routing.certificate import certify
from firstline_core.routing.confidence import Scores

_PAIRS = (("cifar10-cascade", "resnet8-int8"), ("imagenet-cascade", "v1-160"))
_SIZES = (650, 2500)
_PROMISES = tuple((epsilon, delta) for epsilon in (0.05, 0.02) for delta in (0.1, 0.05))
_PLAIN_GRID = np.arange(0.99, 0, -0.01)
_OWN = Score("margin")
_AIMS = {650: 0.7, 2500: 0.9}  # of the oracle's share, on the CIFAR pair at epsilon 5 %
_SURE = 0.01  # a promise counts as broken when so many violations have less than this probability
_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Population:
    """Every threshold that makes a difference, with the share it truly keeps and its true risk; strict to loose."""

    thresholds: NDArray[np.float64]
    shares: NDArray[np.float64]
    risks: NDArray[np.float64]

    @classmethod
    def of(cls, scores: Scores, losses: NDArray[np.bool_]) -> Population:
        values, codes = np.unique(-scores.astype(np.float64), return_inverse=True)
        kept = np.cumsum(np.bincount(codes))
        return cls(-values, kept / len(scores), np.cumsum(np.bincount(codes, weights=losses)) / kept)

    def at(self, threshold: float) -> tuple[float, float]:
        """True share kept and true risk."""
        last = int(np.searchsorted(-self.thresholds, -threshold, side="right")) - 1
        return (float(self.shares[last]), float(self.risks[last])) if last >= 0 else (0.0, 0.0)

    def oracle(self, epsilon: float) -> float:
        """The largest share that any threshold of a risk of at most epsilon keeps."""
        return float(self.shares[self.risks <= epsilon].max(initial=0.0))


@dataclass(slots=True)
class Tally:
    """What came of one promise over all trials."""

    broken: int = 0
    naive_broken: int = 0
    shares: float = 0.0
    plain_shares: float = 0.0
    own_oracle: float = 0.0
    ceiling: float = 0.0
    certified: int = 0


def measure(pool: Pool, loss: str, n: int, trials: int) -> Iterator[Figure]:
    """Repeats the procedure; every promise on the same samples."""
    losses = pool.losses()[loss]
    truths = pool.labels if loss == "harm" else pool.full.argmax(axis=1)
    margin = scorer(_OWN)(pool.edge)
    own_scores = margin.astype(np.float64)
    plain = Population.of(margin, losses)
    tallies = {promise: Tally() for promise in _PROMISES}
    learned = 0
    for rows in np.random.default_rng(_SEED).integers(0, len(losses), (trials, n)):
        chosen = select(
            pool.edge[rows],
            losses[rows],
            truths[rows],
            own=_OWN,
            own_scores=own_scores[rows],
            seed=_SEED,
        )
        learned += chosen.score.learned is not None
        truth = plain if chosen.score == _OWN else Population.of(scorer(chosen.score)(pool.edge), losses)
        sample = Population.of(margin[rows], losses[rows])
        certifying = rows[chosen.rest]
        for (epsilon, delta), tally in tallies.items():
            found = certify(
                chosen.scores[chosen.rest], losses[certifying], epsilon, delta, starts=chosen.starts, seed=_SEED
            )
            if found.threshold is not None:
                share, risk = truth.at(found.threshold)
                tally.certified += 1
                tally.shares += share
                tally.broken += risk > epsilon
            tally.own_oracle += truth.oracle(epsilon)
            tally.plain_shares += plain.at(_plain_walk(sample, n, epsilon, delta))[0]
            passing = sample.risks <= epsilon
            tally.naive_broken += _breaks(sample, passing, plain, epsilon)[1]
            kept = np.round(sample.shares[passing] * n)
            passing[passing] = binomial.cdf(np.round(sample.risks[passing] * kept), kept, epsilon) <= delta
            tally.ceiling += _breaks(sample, passing, plain, epsilon)[0]
    for (epsilon, delta), tally in tallies.items():
        what = f"{pool.name}: {loss} <= {epsilon:.0%} at {1 - delta:.0%}, {n} rows"
        aim = _AIMS[n] if epsilon == 0.05 and pool.name.startswith("cifar10") else None
        yield _contract(what, tally.broken, trials, delta)
        yield Figure(f"{what}: contract broken by naive tuning", tally.naive_broken / trials, "share of calibrations")
        yield Figure(f"{what}: certified", tally.certified / trials, "share of calibrations")
        yield from _power(what, tally, trials, plain.oracle(epsilon), aim)
        yield Figure(f"{what}: learned score chosen", learned / trials, "share of calibrations")


def _plain_walk(sample: Population, n: int, epsilon: float, delta: float) -> float:
    """The threshold that fixed-sequence testing over a fixed grid of margins certifies; infinite where none."""
    shares, risks = np.array([sample.at(threshold) for threshold in _PLAIN_GRID]).T
    kept = np.round(shares * n)
    failed = binomial.cdf(np.round(risks * kept), kept, epsilon) > delta
    passed = int(failed.argmax()) if failed.any() else len(_PLAIN_GRID)
    return float(_PLAIN_GRID[passed - 1]) if passed else np.inf


def _breaks(sample: Population, passing: NDArray[np.bool_], truth: Population, epsilon: float) -> tuple[float, bool]:
    """True share of the loosest passing threshold, and whether its true risk is above epsilon."""
    if not passing.any():
        return 0.0, False
    share, risk = truth.at(float(sample.thresholds[np.flatnonzero(passing)[-1]]))
    return share, risk > epsilon


def _contract(what: str, broken: int, trials: int, delta: float) -> Figure:
    at_least = 1 - binomial.cdf(np.arange(trials + 1) - 1, trials, delta)  # P(so many violations or more)
    most = int(np.flatnonzero(at_least >= _SURE)[-1])
    return Figure(
        f"{what}: contract broken",
        broken / trials,
        "share of calibrations",
        f"<= {most / trials:g}, that is {delta:g} and its binomial margin over {trials} calibrations",
        broken <= most,
    )


def _power(what: str, tally: Tally, trials: int, oracle: float, aim: float | None) -> Iterator[Figure]:
    yield Figure(f"{what}: kept by the margin's oracle", oracle, "share of answers")
    yield Figure(f"{what}: kept", tally.shares / trials, "share of answers")
    value = tally.shares / trials / oracle
    yield Figure(
        f"{what}: kept, of what the margin's oracle keeps",
        value,
        "ratio",
        None if aim is None else f">= {aim}",
        None if aim is None else value >= aim,
    )
    plain = tally.plain_shares / trials / oracle
    yield Figure(f"{what}: kept by a plain walk over fixed margins, of what the margin's oracle keeps", plain, "ratio")
    yield Figure(f"{what}: kept, of what the chosen score's oracle keeps", tally.shares / tally.own_oracle, "ratio")
    ceiling = tally.ceiling / trials / oracle
    yield Figure(f"{what}: ceiling: every threshold of the margin at full delta, which is not valid", ceiling, "ratio")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(os.environ.get("FIRSTLINE_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    kept = Path(tempfile.gettempdir()) / "firstline-pools"
    parser.add_argument("--data", type=Path, default=beside, help="folder with the pairs (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=kept, help="folder for collected answers (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=500, help="calibrations of each size (default: %(default)s)")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for pair, variant in _PAIRS:
        if not (arguments.data / pair).is_dir():
            print(f"{pair} is left out: {arguments.data} does not have it.", file=sys.stderr)
            continue
        pool = collect(pair, variant, arguments.data, arguments.cache)
        for loss in pool.losses():
            for n in _SIZES:
                figures += measure(pool, loss, n, arguments.trials)
    return report("certificate", figures)


if __name__ == "__main__":
    sys.exit(main())
