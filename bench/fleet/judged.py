"""Stages judged in memory, by the thousand: the real judgement on drawn devices, without a store between."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from bench.fleet.alarms import BoundedContract
from bench.fleet.population import AUDITS_PER_HOUR, BUNDLE, NEW, NOTHING, STREET, Effect, Scenery, population
from bench.fleet.population import Device as Drawn
from firstline_core.fleet.telemetry import Telemetry
from firstline_gateway.fleet.totals import Totals, added
from firstline_gateway.rollouts.judgement.figures import Device, between, compared
from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE
from firstline_gateway.rollouts.judgement.verdict import Decision, Rules, judge


class Ended(NamedTuple):
    """How a rollout ended: aborted or not, in which stage (from 0), and by which rule."""

    aborted: bool
    stage: int
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
                return Ended(True, stage, "contract")
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
                return Ended(True, stage, verdict.rule)
    assert verdict is not None
    return Ended(False, stages - 1, verdict.rule)


def _count(fleet: list[Drawn], told: list[Telemetry | None], totals: list[Totals]) -> None:
    """Every device reports, and its totals grow."""
    for index, device in enumerate(fleet):
        report = device.telemetry
        totals[index] = added(totals[index], told[index], report)
        told[index] = report


class Spread(NamedTuple):
    """How far a model came: promoted to all devices or not, how many it reached, and by which rule it ended where."""

    promoted: bool
    reached: int
    stage: int
    decision: str
    rule: str


DEVICES, SHARES, SOAK_H = 200, (0.1, 0.5, 0.9), 24.0
"""Of the rollouts of `rolled_out`; the last devices are held back until all stages were promoted."""
_EVERY = 2  # evaluations are drawn: half of them take half as long, and find no more


def rolled_out(seed: int, *, effect: Effect, scenery: Scenery = STREET) -> Spread:
    """One rollout of a version without a certificate, which therefore no contract stops.

    Each stage is observed for a day, and takes devices that no earlier stage took.

    Args:
        seed: of everything that is drawn.
        effect: of the model.
        scenery: what the devices see; they start at a time of day that the seed draws.
    """
    start_h = float(np.random.default_rng([19, seed]).uniform(0, 24))
    fleet = list(population(DEVICES, seed * 64, effect, replace(scenery, start_h=start_h)).values())
    told: list[Telemetry | None] = [None] * DEVICES
    totals = [Totals()] * DEVICES
    for device in fleet:
        device.live(24.0)
    past = list(totals)
    _count(fleet, told, totals)
    rules, verdict, taken = _rules(scenery), None, 0
    stage = 0
    for stage, share in enumerate(SHARES):  # noqa: B007 (the stage of its end)
        until = round(share * DEVICES)
        before = [between(BUNDLE, was, now) for was, now in zip(past, totals, strict=True)]
        start = list(totals)
        for device in fleet[taken:until]:
            device.version = NEW
        for look in range(_EVERY, LOOKS_PER_STAGE + 1, _EVERY):
            for device in fleet:
                device.live(SOAK_H / LOOKS_PER_STAGE * _EVERY)
            _count(fleet, told, totals)
            devices = [
                structs.replace(compared(BUNDLE, was, began, now), board=f"board {int(4 * drawn.board)}")
                for drawn, was, began, now in zip(fleet, before, start, totals, strict=True)
            ]
            verdict = judge(
                rules,
                stages=len(SHARES) + 1,
                look=look,
                over=look == LOOKS_PER_STAGE,
                installed=until - taken,
                failed=0,
                treated=devices[taken:until],
                control=devices[until:],
                running=devices[taken:until] if scenery.audits_per_hour else (),
                seed=seed,
            )
            if verdict.decision is Decision.ABORT:
                break
        if verdict is None or verdict.decision is not Decision.PROMOTE:
            break
        past, taken = start, until
    else:
        return Spread(True, DEVICES, len(SHARES), Decision.PROMOTE.value, "sound")
    return Spread(False, until, stage, verdict.decision.value if verdict else "", verdict.rule if verdict else "")


def _rules(scenery: Scenery) -> Rules:
    return Rules() if scenery.audits_per_hour else Rules(ignored=("disagreement",))
