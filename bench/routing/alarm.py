"""Alarm: under shifts of real images, how soon do audits of edge answers find that the contract is broken?

On each pair a threshold is certified on 2,500 rows drawn from the pool. The stream is of audits of the answers that it
keeps: first of the pool as it is, then of a shifted one, of which the true risk is known as well. How often alarms are
false is measured at the certified threshold, and at the loosest threshold whose true risk is at most epsilon, which is
as hard as it gets. That one also takes part where nothing is certified, or where a shift leaves the certified one below
a risk of 2 epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.figures import Figure
from bench.pools import CIFAR10, DIGITS, IMAGENET, TRAINSAMPLE, Pair, Pool, collect
from bench.routing.audits import Floats, Tests, check_against_update, constant, delays
from bench.routing.parts import Job
from bench.routing.population import Population, at_most
from bench.routing.shifts import CHANGES, relabelled
from firstline_core.routing.certification import certify
from firstline_core.tasks.classification import score

EPSILONS = (0.05, 0.02)
DELTA = 0.05
QUIET = (0, 10_000)
FOUND = 0.99
"""Of the streams, within `within(epsilon)` audits of a shift to a risk of at least 2 epsilon."""

FALSE_ALARM_AUDITS = 20_000
STREAMS = 1000  # of audits
_IMAGES = 1000  # of a changed pool
_CALIBRATION, _CERTIFIED_DELTA = 2500, 0.1
_OTHER_IMAGES = "other images"
_SEED = 20261121


def within(epsilon: float) -> int:
    """Audits in which a shift is to be found: 100 / epsilon."""
    return round(100 / epsilon)


@dataclass(frozen=True, slots=True)
class Watch:
    """Streams of one kind.

    Args:
        shift: "labels", "blur", "noise", "other images", or "" for none.
        threshold: "certified" or "loosest".
        quiet: audits before the shift.
        before, after: true risk of edge answers.
        kept: edge share after the shift.
        delays: audits from the shift to the alarm, infinite where there was none.
        early: runs that alarmed before the shift.
    """

    pair: str
    shift: str
    epsilon: float
    threshold: str
    quiet: int
    before: float
    after: float
    kept: float
    delays: Floats
    early: int

    @property
    def name(self) -> str:
        if not self.shift:
            return f"{self.pair}: {self.before:.2%} at the {self.threshold} threshold for {self.epsilon:.0%}"
        promise = f"{self.pair}: {self.epsilon:.0%} promised"
        return f"{promise}, {self.shift} make it {self.after:.1%} after {self.quiet} quiet audits"

    @property
    def found(self) -> float:
        return float(np.isfinite(self.delays).mean())

    def delay(self, quantile: float) -> float | None:
        """Audits to the alarm at this quantile of the streams; None if a smaller share of them alarmed."""
        at = float(np.sort(self.delays)[min(int(len(self.delays) * quantile), len(self.delays) - 1)])
        return at if np.isfinite(at) else None

    @property
    def aimed(self) -> bool:
        """Whether it is a shift that must be found."""
        return self.shift not in ("", _OTHER_IMAGES) and self.after >= 2 * self.epsilon


def jobs(pools: Mapping[str, Pool]) -> list[Job]:
    others = {_OTHER_IMAGES: pools[TRAINSAMPLE.name]} if TRAINSAMPLE.name in pools else {}
    return [
        Job(f"alarm: {pair.name}", partial(_watch_pair, pair, pools[pair.name], others if pair is IMAGENET else {}))
        for pair in (DIGITS, CIFAR10, IMAGENET)
        if pair.name in pools
    ]


def _watch_pair(pair: Pair, pool: Pool, others: dict[str, Pool]) -> list[Watch]:
    changed = {
        shift: collect(pair, change=change, changed=changed, limit=_IMAGES)
        for shift, (changed, change) in CHANGES[pair.recipe].items()
    }
    return watch(pool, {**changed, **others}, STREAMS)


def watch(pool: Pool, shifted: Mapping[str, Pool], streams: int) -> list[Watch]:
    """Streams without a shift, with shifted labels, and with each of the shifted pools."""
    found = []
    scores, losses = score("margin", pool.edge), pool.losses()["disagreement"]
    truth = Population.of(scores, losses)
    random = np.random.default_rng(_SEED)
    sample = random.integers(0, len(losses), _CALIBRATION)
    for epsilon in EPSILONS:
        check_against_update(epsilon, constant(np.random.default_rng(_SEED), 1))
        certified = certify(scores[sample], losses[sample], epsilon, _CERTIFIED_DELTA).threshold
        thresholds = {
            name: threshold
            for name, threshold in (("certified", certified), ("loosest", truth.loosest(epsilon)))
            if threshold is not None
        }
        for name, threshold in thresholds.items():
            edge_share, risk = truth.at(threshold)
            test, stream = Tests(epsilon, streams), constant(random, streams)
            late, _ = delays(test, DELTA, stream, (risk, 0), (risk, FALSE_ALARM_AUDITS))
            found.append(Watch(pool.name, "", epsilon, name, 0, risk, risk, edge_share, late, 0))
        shifts: dict[str, Callable[[float], Pool]] = {
            "labels": lambda threshold: relabelled(pool, scores >= threshold, losses, 2 * epsilon),  # noqa: B023
            **{name: partial(_same, other) for name, other in shifted.items()},
        }
        for shift, made in shifts.items():
            at = {name: _population(made(threshold)).at(threshold) for name, threshold in thresholds.items()}
            broken = (name for name, (_, after) in at.items() if after >= 2 * epsilon)
            name = next(broken, next(iter(at), ""))
            if not name or not at[name][0]:
                continue
            (edge_share, after), risk = at[name], truth.at(thresholds[name])[1]
            for quiet in QUIET:
                test, stream = Tests(epsilon, streams), constant(random, streams)
                late, early = delays(test, DELTA, stream, (risk, quiet), (after, within(epsilon)))
                found.append(
                    Watch(pool.name, shift, epsilon, name, quiet, risk, after, edge_share, late, int(early.sum()))
                )
    return found


def _same(pool: Pool, _threshold: float) -> Pool:
    return pool


def _population(pool: Pool) -> Population:
    return Population.of(score("margin", pool.edge), pool.losses()["disagreement"])


def figures(records: Sequence[Watch]) -> list[Figure]:
    found = []
    for one in records:
        runs = len(one.delays)
        if not one.shift:
            alarms = int(np.isfinite(one.delays).sum())
            if one.before > one.epsilon:  # a certificate that fails, as one in 1 / delta may
                found.append(Figure(f"{one.name}, which breaks it: alarms", one.found, "share of streams"))
            else:
                what = f"{one.name}: false alarms in {FALSE_ALARM_AUDITS} audits"
                found.append(at_most(what, alarms, runs, DELTA, "streams"))
            continue
        aim, holds = (f">= {FOUND}", one.found >= FOUND) if one.aimed else (None, None)
        what = f"{one.name}: found within {within(one.epsilon)}"
        found.append(Figure(what, one.found, "share of streams", aim, holds))
        found.append(Figure(f"{one.name}: median delay", one.delay(0.5), "audits"))
        if one.quiet:
            found.append(at_most(f"{one.name}: alarms before the shift", one.early, runs, DELTA, "streams"))
    return found
