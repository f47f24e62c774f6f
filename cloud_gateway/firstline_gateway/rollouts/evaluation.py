"""Both groups of a stage observed, looked at and judged: eight times within its time, then ever more seldom. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from firstline_core.fleet.rollout import FindingState, Look
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.changes import Now, Step, View, abort, named, of_stage, pause, promote
from firstline_gateway.rollouts.definition import Assignment, DeviceState, Phase, Rollout
from firstline_gateway.rollouts.device_progress import is_there
from firstline_gateway.rollouts.judgement.spending import LOOKS
from firstline_gateway.rollouts.judgement.verdict import Decision, Device, Finding, Verdict, judge
from firstline_gateway.rollouts.measurements import compared

_SHORTEST_S = 60.0  # between two looks
_S = DeviceState


def observe(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    """The installations have ended; from here on both groups are observed."""
    rollout = made.rollout
    names = [name for name, each in held.items() if each.stage == rollout.stage]
    totals = view.totals(names)
    made.start = {name: totals.get(name, Totals()) for name in names}
    soak_s = rollout.current.soak_s
    made.rollout = replace(
        rollout,
        phase=Phase.OBSERVING,
        since_s=now.service_s,
        patience_s=now.service_s + soak_s,
        look_due_s=now.service_s + min(soak_s, _interval_s(soak_s, 0.0)),
        sentence=f"{named(rollout)} is observed for {soak_s:g} s.",
    )
    made.more = not soak_s
    made.notes.append(("rollout.observe", "rule:order", {"stage": rollout.stage, "devices": len(names)}))


def look(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Judges the stage by what came so far."""
    rollout = made.rollout
    groups = _groups(rollout, held, view)
    mine = of_stage(rollout, held)
    failed = sum(each.state in (_S.FAILED, _S.SILENT) for each in mine)
    installed = sum(each.state is _S.DONE for each in mine)
    elapsed_s = now.service_s - rollout.since_s
    over = elapsed_s >= rollout.current.soak_s
    verdict = _judged(rollout, installed, failed, groups, over=over)
    # Whoever had it go on within its time had it go on to the end of that.
    patient_s = max(rollout.patience_s, rollout.since_s + rollout.current.soak_s) + rollout.current.patience_s
    due_s = now.service_s + _interval_s(rollout.current.soak_s, elapsed_s)
    made.rollout = replace(
        rollout,
        look_due_s=min(due_s, patient_s) if over and patient_s > now.service_s else due_s,
        sentence=f"{named(rollout)}: {verdict.sentence}",
    )
    _record(made, verdict, now)
    if verdict.decision is Decision.ABORT:
        abort(made, verdict, now)
    elif verdict.decision is Decision.PROMOTE:
        promote(made, f"rule:{verdict.rule}", verdict.sentence)
    elif over and now.service_s >= patient_s:
        pause(made, f"{named(rollout)}: {verdict.sentence} Resume looks on; promote and abort do not.", now)


def foresee(made: Step, mine: Iterable[Assignment], now: Now) -> bool:
    """Aborts where so many have failed that the first look will, whatever the rest does; whether it did."""
    tried = [each for each in mine if each.state not in (_S.AWAY, _S.WITHDRAWN)]
    failed = sum(each.state is _S.FAILED for each in tried)
    if not failed:
        return False
    verdict = _judged(made.rollout, len(tried) - failed, failed, ((), ()), over=False)
    if verdict.decision is not Decision.ABORT:
        return False
    _record(made, verdict, now)
    abort(made, verdict, now)
    return True


def finite(value: float) -> float | None:
    """As documents have it: null where it is not known, or has no bound."""
    return value if math.isfinite(value) else None


def _groups(rollout: Rollout, held: Mapping[str, Assignment], view: View) -> tuple[list[Device], list[Device]]:
    """The stage's devices that were there when it began, and its control likewise."""
    bundle, kept = rollout.definition.measured, view.measured()
    there = [each for each in held.values() if each.stage == rollout.stage and each.there and each.device in kept]
    totals = view.totals(each.device for each in there)
    groups: tuple[list[Device], list[Device]] = ([], [])
    for each in there:
        before, start = kept[each.device]
        silent = not is_there(view.devices.get(each.device), rollout.definition.silent_s)
        found = compared(bundle, before, start, totals.get(each.device), silent=silent)
        groups[0 if each.treated else 1].append(found)
    return groups


def _judged(rollout: Rollout, installed: int, failed: int, groups: tuple[Any, Any], *, over: bool) -> Verdict:
    definition = rollout.definition
    return judge(
        definition.rules,
        stages=len(definition.stages) + 1,  # those held back are judged by their installations
        look=rollout.look + 1,
        over=over,
        installed=installed,
        failed=failed,
        treated=groups[0],
        control=groups[1],
        seed=(rollout.seed + 1_000_003 * rollout.stage) % 2**63,
    )


def _record(made: Step, verdict: Verdict, now: Now) -> None:
    rollout = made.rollout
    made.rollout = replace(rollout, look=verdict.look)
    findings = tuple(_finding(each) for each in verdict.findings)
    made.look = Look(
        rollout.stage, verdict.look, now.wall_s, verdict.decision.value, verdict.rule, verdict.sentence, findings
    )
    made.notes.append(("rollout.look", f"rule:{verdict.rule}", msgspec.to_builtins(made.look)))


def _finding(found: Finding) -> FindingState:
    return FindingState(
        found.figure,
        finite(found.treated),
        finite(found.control),
        found.tolerance,
        found.p_value,
        found.level,
        finite(found.seen),
        found.devices,
        found.find,
    )


def _interval_s(soak_s: float, elapsed_s: float) -> float:
    """Until the next look: a stage that is held for weeks is looked at some dozens of times, each of which can tell."""
    return max(_SHORTEST_S, soak_s / LOOKS, elapsed_s / LOOKS)
