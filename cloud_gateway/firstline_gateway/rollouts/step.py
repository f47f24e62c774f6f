"""One step of a rollout: computes the changes from its state, its devices' reports and the time. Pure.

installing      the stage's devices are offered the model, at its pace, until they finish or its patience ends
observing       both groups are observed, and the stage is judged
going back      devices under way stop after an abort; those that are done go back after a rollback, too
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from firstline_core.telemetry.wording import counted
from firstline_gateway.fleet.selector import parse_selector
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.changes import Changes, Now, View
from firstline_gateway.rollouts.definition import divide, due, place
from firstline_gateway.rollouts.device_progress import after_offer, after_report, is_reachable, offer, rollback
from firstline_gateway.rollouts.evaluation import abort_early, evaluate, observe
from firstline_gateway.rollouts.judgement.figures import BEFORE_S, between
from firstline_gateway.rollouts.state import (
    EVER_OFFERED,
    UNFINISHED,
    Assignment,
    DeviceState,
    Phase,
    Rollout,
    RolloutState,
    stage_devices,
)

_AT_ONCE = 1000  # devices whose desired state one step changes; the next step is due at once
_S = DeviceState


def step(rollout: Rollout, assignments: Mapping[str, Assignment], view: View, now: Now) -> Changes:
    """Returns the changes of one step.

    Args:
        rollout: its state.
        assignments: its devices so far.
        view: of the fleet.
        now: the time.
    """
    changes = Changes(rollout)
    for name, assignment in assignments.items():
        after = after_report(assignment, view.devices.get(name), rollout)
        if after is not assignment:
            changes.assigned[name] = after
    devices = {**assignments, **changes.assigned}
    if rollout.state is RolloutState.RUNNING:
        if rollout.phase is Phase.NONE:
            _begin(changes, devices, view, now)
        elif rollout.phase is Phase.INSTALLING:
            _install(changes, devices, view, now)
        elif now.service_s >= rollout.look_due_s:
            evaluate(changes, devices, view, now)
    elif rollout.state is RolloutState.ROLLING_BACK:
        _go_back(changes, devices, view, including_done=True)
    elif rollout.unsettled:
        _go_back(changes, devices, view, including_done=False)
    return changes


def selected(rollout: Rollout, view: View) -> list[tuple[str, Mapping[str, str]]]:
    """Returns names and tags of the devices of a rollout."""
    selector = parse_selector(rollout.definition.selector)
    return [(name, device.tags) for name, device in sorted(view.devices.items()) if selector.matches(device.tags)]


def _stage_groups(
    rollout: Rollout, assignments: Mapping[str, Assignment], view: View
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the stage's devices in order, and its control group; the devices held back come last."""
    definition, devices = rollout.definition, selected(rollout, view)
    taken = {name for name, assignment in assignments.items() if assignment.treated}
    if rollout.is_rest:
        rest = sorted((name for name, _ in devices if name not in taken), key=lambda name: place(rollout.salt, name))
        return tuple(rest), ()
    treated, control = divide(rollout.salt, definition.stages, rollout.stage, devices, definition.held_back)
    return tuple(name for name in treated if name not in taken), tuple(name for name in control if name not in taken)


def _begin(changes: Changes, assignments: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Assigns the stage's devices, and stores their counts of the time before."""
    rollout = changes.rollout
    treated, control = _stage_groups(rollout, assignments, view)
    for group, state in ((treated, _S.WAITING), (control, _S.CONTROL)):
        for number, name in enumerate(group):
            reachable = is_reachable(view.devices.get(name), rollout.definition.silent_s)
            changes.assigned[name] = Assignment(name, rollout.stage, state is _S.WAITING, reachable, number, state)
    # Devices that still waited when a person promoted the stage before come first; chance did not put them here, so
    # they are not compared.
    left = [each for each in assignments.values() if each.treated and each.state is _S.WAITING]
    for number, each in enumerate(sorted(left, key=lambda each: (each.stage, each.place))):
        changes.assigned[each.device] = replace(each, stage=rollout.stage, reachable=False, place=number - len(left))
    names = [] if rollout.is_rest else [*treated, *control]  # the devices held back are not observed
    end, start = view.totals(names), view.totals_before(names, now.wall_s - BEFORE_S)
    bundle = rollout.definition.judged_bundle
    changes.before = {
        name: between(bundle, start.get(name, Totals()), end[name]) if name in end else None for name in names
    }
    devices = len(treated) + len(left)
    changes.rollout = replace(
        rollout,
        phase=Phase.INSTALLING,
        since_s=now.service_s,
        patience_s=now.service_s,
        lost_s=0.0,
        look=0,
        sentence=f"{rollout.stage_title} takes {counted(devices, 'device')}; {len(control)} left alone.",
    )
    changes.note("stage", "rule:order", stage=rollout.stage, devices=devices, control=len(control))
    changes.more = True


def _install(changes: Changes, assignments: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Offers the model to as many devices as the stage's pace allows; continues when all have finished."""
    rollout, patience_s = changes.rollout, changes.rollout.current.patience_s
    devices = stage_devices(rollout, assignments)
    elapsed_s = now.service_s - rollout.since_s - rollout.lost_s
    begun = sum(each.offered_s is not None and each.offered_s >= rollout.since_s for each in devices)
    waiting = [each for each in devices if each.state is _S.WAITING]
    wanted = waiting[: max(0, due(rollout.current, begun + len(waiting), elapsed_s) - begun)]
    for assignment in wanted[:_AT_ONCE]:
        device = view.devices.get(assignment.device)
        if device is None:
            changes.assigned[assignment.device] = replace(assignment, state=_S.WITHDRAWN)
            continue
        changes.assigned[assignment.device] = after = after_offer(assignment, device, rollout, now.service_s)
        changes.desired[assignment.device] = offer(after, rollout)
    changes.more = len(wanted) > _AT_ONCE
    if abort_early(changes, devices, now):
        return
    if not any(each.state in UNFINISHED for each in stage_devices(rollout, {**assignments, **changes.assigned})):
        if rollout.is_rest:
            changes.end(RolloutState.COMPLETED, "All stages were promoted, and those held back have the model.")
        else:
            observe(changes, assignments, view, now)
    elif now.service_s - rollout.patience_s > patience_s:
        slow, have = sum(each.state in UNFINISHED for each in devices), "has" if len(devices) == 1 else "have"
        changes.pause(
            f"{rollout.stage_title}: {slow} of {counted(len(devices), 'device')} {have} not installed "
            f"within {patience_s:g} s; resume waits for as long again, promote and abort do not.",
            now,
        )


def _go_back(changes: Changes, assignments: Mapping[str, Assignment], view: View, *, including_done: bool) -> None:
    """Sets the previous desired version of devices; of those that are done, only if they are included."""
    rollout, version = changes.rollout, changes.rollout.definition.version
    leave = {_S.RETURNING, _S.RETURNED, _S.STRANDED}
    leave |= set() if including_done else {_S.DONE, _S.FAILED, _S.WITHDRAWN}
    affected = [each for each in assignments.values() if each.state in EVER_OFFERED - leave]
    for each in affected[:_AT_ONCE]:
        device = view.devices.get(each.device)
        replaced = device is None or device.desired is None or device.desired.rollout != rollout.id
        if replaced or each.before_version == version:
            changes.assigned[each.device] = replace(each, state=_S.RETURNED if including_done else _S.WITHDRAWN)
            continue
        changes.desired[each.device] = rollback(each, rollout)
        changes.assigned[each.device] = replace(each, state=_S.RETURNING if including_done else _S.WITHDRAWN)
    for each in assignments.values():
        if each.state is _S.WAITING:
            changes.assigned[each.device] = replace(each, state=_S.WITHDRAWN)
    changes.more = bool(affected)
    if affected:
        return
    if not including_done:
        changes.rollout = replace(rollout, unsettled=False)
        return
    returning = [each for each in assignments.values() if each.state is _S.RETURNING]
    silent_s = rollout.definition.silent_s
    if not any(is_reachable(view.devices.get(each.device), silent_s) for each in returning):
        later = f"; silent, and told when heard of again: {counted(len(returning), 'device')}" if returning else ""
        returned = sum(each.state is _S.RETURNED for each in assignments.values())
        sentence = f"{rollout.sentence} What ran before runs again on {counted(returned, 'device')}{later}."
        changes.end(RolloutState.ROLLED_BACK, f"{sentence}{_stranded(rollout, assignments)}")


def _stranded(rollout: Rollout, assignments: Mapping[str, Assignment]) -> str:
    """Returns a sentence about devices that could not go back; "" if all could."""
    stranded = [each for each in assignments.values() if each.state is _S.STRANDED]
    if not stranded:
        return ""
    reasons = ", ".join(sorted({each.reason for each in stranded}))
    return (
        f" {counted(len(stranded), 'device')} could not go back ({reasons}), and {rollout.definition.title} runs "
        "there: start a rollout of a version that is signed for."
    )
