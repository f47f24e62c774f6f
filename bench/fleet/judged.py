"""Stages judged in memory, by the thousand: the real judgement on drawn devices, without a store between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from bench.fleet.alarms import BoundedContract
from bench.fleet.population import AUDITS_PER_HOUR, BUNDLE, NEW, NOTHING, STREET, Effect, Scenery, population
from bench.fleet.population import Device as Drawn
from firstline_core.fleet.telemetry import Telemetry
from firstline_gateway.fleet.totals import Totals, added
from firstline_gateway.rollouts.judgement.figures import StageDevice, between, compared
from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE
from firstline_gateway.rollouts.judgement.verdict import Rules, StageDecision, Verdict, judge


class _Fleet:
    """Drawn devices, which have been there for a day, and what they told.

    Args:
        devices: by name.
    """

    def __init__(self, devices: Sequence[Drawn]) -> None:
        self._devices = devices
        self._told: list[Telemetry | None] = [None] * len(devices)
        self._totals = [Totals()] * len(devices)
        self._past = list(self._totals)
        self.live(24.0)

    def live(self, hours: float) -> None:
        """Every device lives and reports, and its totals grow."""
        for index, device in enumerate(self._devices):
            device.live(hours)
            report = device.telemetry
            self._totals[index] = added(self._totals[index], self._told[index], report)
            self._told[index] = report

    def stage(self, treated: slice, hours: float, every: int = 1) -> Iterator[tuple[int, list[StageDevice]]]:
        """Begins a stage on some devices; yields the numbers of its evaluations, and all devices as they are then.

        Args:
            treated: the devices that run the new version from now on.
            hours: of observation.
            every: one of this many evaluations takes place.
        """
        before = [between(BUNDLE, was, now) for was, now in zip(self._past, self._totals, strict=True)]
        self._past = start = list(self._totals)
        for device in self._devices[treated]:
            device.version = NEW
        for look in range(every, LOOKS_PER_STAGE + 1, every):
            self.live(hours / LOOKS_PER_STAGE * every)
            yield look, [compared(BUNDLE, *each) for each in zip(before, start, self._totals, strict=True)]


def _verdict(
    rules: Rules,
    look: int,
    treated: Sequence[StageDevice],
    control: Sequence[StageDevice],
    *,
    stages: int,
    seed: int,
    running: Sequence[StageDevice] = (),
) -> Verdict:
    """Returns the judgement of an evaluation after all installations succeeded; see `judge`."""
    return judge(
        rules,
        stages=stages + 1,
        look=look,
        over=look == LOOKS_PER_STAGE,
        installed=len(treated),
        failed=0,
        treated=treated,
        control=control,
        running=running,
        seed=seed,
    )


class Ended(NamedTuple):
    """How a rollout ended: the last decision, its stage (from 0) and rule, and the number of devices reached."""

    decision: StageDecision
    stage: int
    rule: str
    reached: int = 0

    @property
    def aborted(self) -> bool:
        return self.decision is StageDecision.ABORT

    @property
    def promoted(self) -> bool:
        return self.decision is StageDecision.PROMOTE


def judged(
    seed: int,
    *,
    treated: int,
    control: int,
    stages: int,
    effect: Effect = NOTHING,
    hours: float = 8.0,
    contract: bool = False,
) -> Ended:
    """One rollout over devices that differ, `stages` times eight looks at groups that chance divided.

    Args:
        seed: of everything that is drawn.
        treated: devices of each stage.
        control: those without.
        stages: each with other devices, as in a fleet that is large.
        effect: of the model.
        hours: of observation in each stage; a device is audited `AUDITS_PER_HOUR` times an hour.
        contract: whether the version has a certificate, whose audits disagree exactly as often as it allows.
    """
    audits = BoundedContract(np.random.default_rng([18, seed])) if contract else None
    verdict = None
    for stage in range(stages):
        fleet = _Fleet(list(population(treated + control, seed * 64 + stage, effect).values()))
        for look, devices in fleet.stage(slice(treated), hours):
            if audits is not None and audits.audit(round(treated * hours / LOOKS_PER_STAGE * AUDITS_PER_HOUR)):
                return Ended(StageDecision.ABORT, stage, "contract")
            verdict = _verdict(Rules(), look, devices[:treated], devices[treated:], stages=stages, seed=seed)
            if verdict.decision is StageDecision.ABORT:
                return Ended(verdict.decision, stage, verdict.rule)
    assert verdict is not None
    return Ended(verdict.decision, stages - 1, verdict.rule)


DEVICES, SHARES, SOAK_H = 200, (0.1, 0.5, 0.9), 24.0
"""Of the rollouts of `rolled_out`; the last devices are held back until all stages were promoted."""
_EVERY = 2  # evaluations are drawn: half of them take half as long, and find no more


def rolled_out(seed: int, *, effect: Effect, scenery: Scenery = STREET) -> Ended:
    """One rollout of a version without a certificate, which therefore no contract stops.

    Each stage is observed for a day, and takes devices that no earlier stage took.

    Args:
        seed: of everything that is drawn.
        effect: of the model.
        scenery: what the devices see; they start at a time of day that the seed draws.
    """
    start_h = float(np.random.default_rng([19, seed]).uniform(0, 24))
    drawn = list(population(DEVICES, seed * 64, effect, replace(scenery, start_h=start_h)).values())
    boards = [f"board {int(4 * each.board)}" for each in drawn]
    audited = scenery.audits_per_hour > 0
    rules = Rules() if audited else Rules(ignored=("disagreement",))
    fleet, verdict, taken = _Fleet(drawn), None, 0
    for stage, share in enumerate(SHARES):
        until = round(share * DEVICES)
        for look, found in fleet.stage(slice(taken, until), SOAK_H, _EVERY):
            devices = [structs.replace(each, board=board) for each, board in zip(found, boards, strict=True)]
            treated, control = devices[taken:until], devices[until:]
            running = treated if audited else ()
            verdict = _verdict(rules, look, treated, control, stages=len(SHARES), seed=seed, running=running)
            if verdict.decision is StageDecision.ABORT:
                break
        assert verdict is not None
        if verdict.decision is not StageDecision.PROMOTE:
            return Ended(verdict.decision, stage, verdict.rule, until)
        taken = until
    return Ended(StageDecision.PROMOTE, len(SHARES), "sound", DEVICES)
