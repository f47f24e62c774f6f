"""Value: of what an oracle would gain by the same number of escalations, how much does each policy gain?

The gain of a set of escalations is the accuracy above that of the edge alone: an answer is worth 1 where the full model
alone is right, -1 where the edge alone is. The oracle escalates first where it is worth 1. Whatever a policy has to
learn it learns on one half of the pool, and it is measured on the other; many times, each with another split. Rows come
at random moments, one a second on average, which matters to the policy that pauses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure
from bench.pools import TRAINSAMPLE, Pool
from bench.routing.parts import Effort, Job
from bench.routing.policies import CONTENDERS, rows_of

Floats = NDArray[np.float64]

RATES = np.arange(0.05, 0.501, 0.05)
OURS = "value"
ORACLE = "oracle"
OTHERS = ("threshold", "sedna", "groundlight", "random")
"""What peers do. `certified` is ours as well: it bounds a risk, where `value` makes the most of each escalation."""

_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Gain:
    """One policy on one pair.

    Args:
        gained: (splits, rates) accuracy above the edge's alone.
        captured: (splits, rates) of the gain of an oracle that escalates as many.
        edge, full: accuracy of either alone.
    """

    pair: str
    policy: str
    gained: Floats
    captured: Floats
    edge: float
    full: float

    @property
    def mean(self) -> Floats:
        """(splits,) share captured, over all rates."""
        means: Floats = self.captured.mean(axis=1)
        return means


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    return [
        Job(f"value: {pool.name}", partial(measure, pool, effort.splits))
        for pool in pools.values()
        if pool.name != TRAINSAMPLE.name
    ]


def measure(pool: Pool, splits: int) -> list[Gain]:
    """Every policy on the same splits."""
    policies = (ORACLE, *CONTENDERS)
    gained, captured = np.zeros((2, len(policies), splits, len(RATES)))
    for split in range(splits):
        random = np.random.default_rng((_SEED, split))
        order = random.permutation(len(pool.labels))
        fitted, measured = pool.take(order[: len(order) // 2]), pool.take(order[len(order) // 2 :])
        gains = measured.gains()
        best = np.append(0, np.cumsum(np.sort(gains)[::-1].clip(min=0)))  # by how many are escalated
        rows = rows_of(fitted, measured, np.cumsum(random.exponential(1.0, len(gains))))
        for at, rate in enumerate(RATES):
            wanted = round(rate * len(gains))
            gained[0, split, at], captured[0, split, at] = best[wanted] / len(gains), 1.0
            for number, escalate in enumerate(CONTENDERS.values(), 1):
                chosen = escalate(rows, wanted)
                gained[number, split, at] = gains[chosen].sum() / len(gains)
                captured[number, split, at] = gains[chosen].sum() / best[chosen.sum()] if chosen.any() else 0.0
    edge, full = ((said.argmax(axis=1) == pool.labels).mean() for said in (pool.edge, pool.full))
    return [
        Gain(pool.name, name, gained[number], captured[number], float(edge), float(full))
        for number, name in enumerate(policies)
    ]


def lead(records: Sequence[Gain], pair: str) -> tuple[str, float]:
    """Returns the best of the other projects' policies, and by how much ours is ahead of it."""
    ours = next(one for one in records if one.pair == pair and one.policy == OURS)
    others = [one for one in records if one.pair == pair and one.policy in OTHERS]
    second = max(others, key=lambda one: float(one.mean.mean()))
    return second.policy, float((ours.mean - second.mean).mean())


def figures(records: Sequence[Gain]) -> list[Figure]:
    found = []
    for one in records:
        what = f"{one.pair}: {one.policy}: gain captured of the oracle's at equal escalation, mean of 5 to 50%"
        found.append(Figure(what, float(one.mean.mean()), "ratio"))
    for pair in dict.fromkeys(one.pair for one in records):
        second, ahead = lead(records, pair)
        what = f"{pair}: {OURS} before the best of the others' policies ({second}), in gain captured"
        found.append(Figure(what, ahead, "ratio", "> 0", ahead > 0))
    return found
