"""Stages judged in memory, by the thousand: the real judgement on drawn devices, without a store between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bench.fleet.alarms import BoundedContract
from bench.fleet.population import AUDITS_PER_HOUR, BUNDLE, NEW, NOTHING, Effect, population
from bench.fleet.population import Device as Drawn
from firstline_core.fleet.telemetry import Telemetry
from firstline_gateway.fleet.totals import Totals, added
from firstline_gateway.rollouts.judgement.figures import Device, between, compared
from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE
from firstline_gateway.rollouts.judgement.verdict import Decision, Rules, judge


class Ended(NamedTuple):
    """How a rollout ended: aborted or not, in which stage (from 0) and look, and by which rule."""

    aborted: bool
    stage: int
    look: int
    rule: str


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
    rules = Rules()
    verdict = None
    for stage in range(stages):
        fleet = list(population(treated + control, seed * 64 + stage, effect).values())
        told: list[Telemetry | None] = [None] * len(fleet)
        totals = [Totals()] * len(fleet)

        for device in fleet:
            device.live(24.0)
        _count(fleet, told, totals)
        before = [between(BUNDLE, Totals(), each) for each in totals]
        start = list(totals)
        for device in fleet[:treated]:
            device.version = NEW
        for look in range(1, LOOKS_PER_STAGE + 1):
            for device in fleet:
                device.live(hours / LOOKS_PER_STAGE)
            _count(fleet, told, totals)
            devices: list[Device] = [
                compared(BUNDLE, was, began, now) for was, began, now in zip(before, start, totals, strict=True)
            ]
            if audits is not None and audits.audit(round(treated * hours / LOOKS_PER_STAGE * AUDITS_PER_HOUR)):
                return Ended(True, stage, look, "contract")
            verdict = judge(
                rules,
                stages=stages + 1,
                look=look,
                over=look == LOOKS_PER_STAGE,
                installed=treated,
                failed=0,
                treated=devices[:treated],
                control=devices[treated:],
                seed=seed,
            )
            if verdict.decision is Decision.ABORT:
                return Ended(True, stage, look, verdict.rule)
    assert verdict is not None
    return Ended(False, stages - 1, LOOKS_PER_STAGE, verdict.rule)


def _count(fleet: list[Drawn], told: list[Telemetry | None], totals: list[Totals]) -> None:
    """Every device reports, and its totals grow."""
    for index, device in enumerate(fleet):
        report = device.telemetry
        totals[index] = added(totals[index], told[index], report)
        told[index] = report
