"""Observes both groups of a stage and judges it: eight times within its time, then at growing intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from firstline_core.fleet.rollout import Look
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.changes import Changes, Now, View
from firstline_gateway.rollouts.device_progress import is_reachable
from firstline_gateway.rollouts.judgement.figures import Device, compared
from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE
from firstline_gateway.rollouts.judgement.verdict import Decision, Verdict, judge
from firstline_gateway.rollouts.state import Assignment, DeviceState, Phase, Rollout, stage_devices

_SHORTEST_S = 60.0  # between two evaluations
_S = DeviceState


def observe(changes: Changes, assignments: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Begins the observation of both groups, after the installations have ended."""
    rollout = changes.rollout
    names = [name for name, each in assignments.items() if each.stage == rollout.stage]
    totals = view.totals(names)
    changes.start = {name: totals.get(name, Totals()) for name in names}
    soak_s = rollout.current.soak_s
    changes.rollout = replace(
        rollout,
        phase=Phase.OBSERVING,
        since_s=now.service_s,
        patience_s=now.service_s + soak_s,
        look_due_s=now.service_s + min(soak_s, _interval_s(soak_s, 0.0)),
        sentence=f"{rollout.stage_title} is observed for {soak_s:g} s.",
    )
    changes.more = not soak_s
    changes.note("observe", "rule:order", stage=rollout.stage, devices=len(names))


def evaluate(changes: Changes, assignments: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Judges the stage by the counts so far: promotes it, aborts the rollout, or waits."""
    rollout, stage = changes.rollout, changes.rollout.current
    devices = stage_devices(rollout, assignments)
    failed = sum(each.state in (_S.FAILED, _S.SILENT) for each in devices)
    installed = sum(each.state is _S.DONE for each in devices)
    elapsed_s = now.service_s - rollout.since_s
    over = elapsed_s >= stage.soak_s
    verdict = _judged(rollout, installed, failed, *_groups(rollout, assignments, view), over=over)
    # A person who resumed the rollout within the stage's time resumed it for the rest of that time.
    patient_s = max(rollout.patience_s, rollout.since_s + stage.soak_s) + stage.patience_s
    due_s = now.service_s + _interval_s(stage.soak_s, elapsed_s)
    changes.rollout = replace(
        rollout,
        look_due_s=min(due_s, patient_s) if over and patient_s > now.service_s else due_s,
        sentence=f"{rollout.stage_title}: {verdict.sentence}",
    )
    _record(changes, verdict, now)
    if verdict.decision is Decision.ABORT:
        changes.abort(verdict, now)
    elif verdict.decision is Decision.PROMOTE:
        changes.promote(f"rule:{verdict.rule}", verdict.sentence)
    elif over and now.service_s >= patient_s:
        changes.pause(
            f"{rollout.stage_title}: {verdict.sentence} Resume continues the evaluation; promote and abort end it.", now
        )


def abort_early(changes: Changes, devices: Iterable[Assignment], now: Now) -> bool:
    """Aborts if so many devices failed that the first evaluation will abort in any case; returns whether it did."""
    tried = [each for each in devices if each.state not in (_S.AWAY, _S.WITHDRAWN)]
    failed = sum(each.state is _S.FAILED for each in tried)
    if not failed:
        return False
    verdict = _judged(changes.rollout, len(tried) - failed, failed, (), (), over=False)
    if verdict.decision is not Decision.ABORT:
        return False
    _record(changes, verdict, now)
    changes.abort(verdict, now)
    return True


def _groups(
    rollout: Rollout, assignments: Mapping[str, Assignment], view: View
) -> tuple[Sequence[Device], Sequence[Device]]:
    """Returns the stage's devices that were online when it began, and its control group likewise."""
    definition, baselines = rollout.definition, view.baselines()
    reachable = [
        each
        for each in assignments.values()
        if each.stage == rollout.stage and each.reachable and each.device in baselines
    ]
    totals = view.totals(each.device for each in reachable)
    treated: list[Device] = []
    control: list[Device] = []
    for each in reachable:
        before, start = baselines[each.device]
        silent = not is_reachable(view.devices.get(each.device), definition.silent_s)
        device = compared(definition.judged_bundle, before, start, totals.get(each.device), silent=silent)
        (treated if each.treated else control).append(device)
    return treated, control


def _judged(
    rollout: Rollout,
    installed: int,
    failed: int,
    treated: Sequence[Device],
    control: Sequence[Device],
    *,
    over: bool,
) -> Verdict:
    definition = rollout.definition
    return judge(
        definition.rules,
        stages=len(definition.stages) + 1,  # + 1: the last stage, all remaining devices, judged by their installations
        look=rollout.look + 1,
        over=over,
        installed=installed,
        failed=failed,
        treated=treated,
        control=control,
        seed=(rollout.seed + 1_000_003 * rollout.stage) % 2**63,
    )


def _record(changes: Changes, verdict: Verdict, now: Now) -> None:
    rollout = changes.rollout
    changes.rollout = replace(rollout, look=verdict.look)
    changes.look = Look(
        rollout.stage,
        verdict.look,
        now.wall_s,
        verdict.decision.value,
        verdict.rule,
        verdict.sentence,
        verdict.findings,
    )
    changes.note("look", f"rule:{verdict.rule}", **msgspec.to_builtins(changes.look))


def _interval_s(soak_s: float, elapsed_s: float) -> float:
    """Returns the time until the next evaluation; a stage that is held for weeks has some dozens of them."""
    return max(_SHORTEST_S, soak_s / LOOKS_PER_STAGE, elapsed_s / LOOKS_PER_STAGE)
