"""Value: of what an oracle would gain by the same number of escalations, how much does each policy gain?

The gain of a set of escalations is the accuracy above that of the edge alone: an answer is worth 1 where the full model
alone is right, -1 where the edge alone is. The oracle escalates first where it is worth 1. Whatever a policy has to
learn it learns on one half of the pool, and it is measured on the other; many times, each with another split.

All but the cool-down rank answers, and any rate is reached by moving their threshold or price: so many of the lowest
rank are escalated. The cool-down looks at time as well, and is given a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from figures import Figure
from firstline.workbench.scores import choose_score, fit_logistic
from firstline_core.errors import ConfigError
from firstline_core.routing.confidence import score
from pools import TRAINSAMPLE, Pool
from routing.parts import Effort, Job, Table

Floats = NDArray[np.float64]

RATES = np.arange(0.05, 0.501, 0.05)
OURS = "value"
OTHERS = ("threshold", "sedna", "groundlight", "random")
"""What peers do. `certified` is ours as well: it bounds a risk, where `value` makes the most of each escalation."""

_DECLARED = 0.9  # the threshold that the pairs' bundles declare
_SEED = 20261121

Order = Callable[[Pool, Pool, np.random.Generator], Floats]
"""From the calibration half and the measured half to the latter's priorities: escalate the highest first."""


def _value(fitted: Pool, measured: Pool, _: np.random.Generator) -> Floats:
    """P(edge wrong and full right), learned."""
    try:
        learned = fit_logistic(fitted.edge, fitted.losses()["harm"])
    except ConfigError:  # not one loss to learn from
        return -score("margin", measured.edge).astype(np.float64)
    return 1 - learned.score(measured.edge).astype(np.float64)


def _certified(fitted: Pool, measured: Pool, _: np.random.Generator) -> Floats:
    """The score that certification chooses, which tells disagreement."""
    choice = choose_score(fitted.edge, fitted.losses()["disagreement"], seed=_SEED)
    return -choice.score(measured.edge).astype(np.float64)


def _threshold(_: Pool, measured: Pool, __: np.random.Generator) -> Floats:
    """A threshold on the score that the pairs' bundles declare."""
    return -score("max_probability", measured.edge).astype(np.float64)


def _sedna(_: Pool, measured: Pool, __: np.random.Generator) -> Floats:
    return -score("entropy", measured.edge).astype(np.float64)


def _random(_: Pool, measured: Pool, random: np.random.Generator) -> Floats:
    return random.random(len(measured.labels))


def _oracle(_: Pool, measured: Pool, __: np.random.Generator) -> Floats:
    return measured.gains()


ORDERS: dict[str, Order] = {
    "oracle": _oracle,
    OURS: _value,
    "certified": _certified,
    "threshold": _threshold,
    "sedna": _sedna,
    "random": _random,
}


@dataclass(frozen=True, slots=True)
class Gain:
    """One policy on one pair.

    Args:
        gained: (splits, rates) accuracy above the edge's alone.
        captured: (splits, rates) of the oracle's gain.
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
    gained: dict[str, list[Floats]] = {}
    for split in range(splits):
        random = np.random.default_rng((_SEED, split))
        order = random.permutation(len(pool.labels))
        fitted, measured = pool.take(order[: len(order) // 2]), pool.take(order[len(order) // 2 :])
        for name, priorities in ORDERS.items():
            gained.setdefault(name, []).append(gains_at(priorities(fitted, measured, random), measured.gains()))
        gained.setdefault("groundlight", []).append(_groundlight(measured, random))
    best = np.array(gained["oracle"])
    return [
        Gain(
            pool.name,
            name,
            np.array(rows),
            np.array(rows) / best,
            float((pool.edge.argmax(axis=1) == pool.labels).mean()),
            float((pool.full.argmax(axis=1) == pool.labels).mean()),
        )
        for name, rows in gained.items()
    ]


def gains_at(priorities: Floats, gains: Floats) -> Floats:
    """(rates,) accuracy won by escalating the highest priorities; ties in the order of the rows."""
    won = np.cumsum(gains[np.argsort(-priorities, kind="stable")]) / len(gains)
    found: Floats = won[np.round(RATES * len(gains)).astype(np.intp) - 1]
    return found


def _groundlight(measured: Pool, random: np.random.Generator) -> Floats:
    """(rates,) accuracy won by a threshold with a cool-down, which is as long as makes the rate.

    Requests come at random moments, one a second on average. Where too few are below the declared threshold for a rate,
    it is raised until there are enough.
    """
    confidence, gains = score("max_probability", measured.edge), measured.gains()
    times_s = np.cumsum(random.exponential(1.0, len(gains)))
    won = []
    for rate in RATES:
        wanted = round(rate * len(gains))
        uncertain = np.flatnonzero(confidence < max(_DECLARED, np.sort(confidence)[wanted]))
        shortest_s, longest_s = 0.0, 4 / rate
        for _ in range(30):
            cool_down_s = (shortest_s + longest_s) / 2
            if len(_cooled(uncertain, times_s, cool_down_s)) > wanted:
                shortest_s = cool_down_s
            else:
                longest_s = cool_down_s
        won.append(gains[_cooled(uncertain, times_s, longest_s)].sum() / len(gains))
    return np.array(won)


def _cooled(uncertain: NDArray[np.intp], times_s: Floats, cool_down_s: float) -> list[int]:
    escalated, ready_s = [], -np.inf
    for row in uncertain:
        if times_s[row] >= ready_s:
            escalated.append(int(row))
            ready_s = times_s[row] + cool_down_s
    return escalated


def lead(records: Sequence[Gain], pair: str) -> tuple[str, float, float]:
    """The best of the others' policies, by how much ours is before it, and half of that mean's interval at 95 %.

    The splits share one pool, so that the interval tells of the split's luck and not of the pool's.
    """
    ours = next(one for one in records if one.pair == pair and one.policy == OURS)
    others = [one for one in records if one.pair == pair and one.policy in OTHERS]
    second = max(others, key=lambda one: float(one.mean.mean()))
    differences = ours.mean - second.mean
    return second.policy, float(differences.mean()), _half(differences)


def figures(records: Sequence[Gain]) -> list[Figure]:
    found = []
    for one in records:
        what = f"{one.pair}: {one.policy}: gain captured of the oracle's at equal escalation, mean of 5 to 50%"
        found.append(Figure(what, float(one.mean.mean()), "ratio"))
    for pair in dict.fromkeys(one.pair for one in records):
        second, ahead, _ = lead(records, pair)
        what = f"{pair}: {OURS} before the best of the others' policies ({second}), in gain captured"
        found.append(Figure(what, ahead, "ratio", "> 0", ahead > 0))
    return found


def tables(records: Sequence[Gain]) -> list[Table]:
    shown = [round(rate * len(RATES) / 0.5) - 1 for rate in (0.1, 0.2, 0.3, 0.5)]
    rows = [
        (
            one.pair,
            one.policy,
            f"{one.edge:.1%}",
            f"{one.full:.1%}",
            *(f"{one.gained[:, at].mean():+.2%}" for at in shown),
            f"{one.mean.mean():.3f}",
            f"{_half(one.mean):.3f}",
        )
        for one in sorted(records, key=lambda one: (one.pair, -one.mean.mean()))
    ]
    columns = ("pair", "policy", "edge", "full", *(f"at {RATES[at]:.0%}" for at in shown), "captured", "+-")
    ahead = [
        (pair, second, f"{difference:+.3f}", f"{half:.3f}")
        for pair in dict.fromkeys(one.pair for one in records)
        for second, difference, half in [lead(records, pair)]
    ]
    return [
        Table("Value: accuracy won at equal escalation, and the share captured of the oracle's gain", columns, rows),
        Table(f"Value: {OURS} before the best of the others', in share captured", ("pair", "other", "by", "+-"), ahead),
    ]


def _half(values: Floats) -> float:
    """Half of the mean's interval at 95 %."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
