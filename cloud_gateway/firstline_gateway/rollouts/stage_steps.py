"""Selects a stage's devices, offers them the model at its pace, and takes them back. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from firstline_core.telemetry.wording import counted
from firstline_gateway.fleet.selector import parse_selector
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.changes import Now, Step, View, end, named, of_stage, pause
from firstline_gateway.rollouts.definition import OPEN, TOLD, Assignment, DeviceState, Phase, Rollout
from firstline_gateway.rollouts.device_progress import is_there, offer, offered, way_back
from firstline_gateway.rollouts.evaluation import foresee, observe
from firstline_gateway.rollouts.measurements import BEFORE_S, between
from firstline_gateway.rollouts.stages import divide, due, place
from firstline_gateway.rollouts.states import RolloutState

_AT_ONCE = 1000  # devices that are told in one step; the next one follows at once
_S = DeviceState


def meant(rollout: Rollout, view: View) -> list[tuple[str, Mapping[str, str]]]:
    """Names and tags of the devices that a rollout is for."""
    selector = parse_selector(rollout.definition.selector)
    return [(name, device.tags) for name, device in sorted(view.devices.items()) if selector.matches(device.tags)]


def arms(rollout: Rollout, held: Mapping[str, Assignment], view: View) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the stage's devices in order, and its control group; the devices held back come last."""
    definition, found = rollout.definition, meant(rollout, view)
    taken = {name for name, assignment in held.items() if assignment.treated}
    if rollout.is_rest:
        rest = sorted((name for name, _ in found if name not in taken), key=lambda name: place(rollout.salt, name))
        return tuple(rest), ()
    divided = divide(rollout.salt, definition.stages, rollout.stage, found, definition.held_back)
    treated = tuple(name for name in divided.treated if name not in taken)
    return treated, tuple(name for name in divided.control if name not in taken)


def begin(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Has the stage's devices named, and what they did before kept."""
    rollout = made.rollout
    treated, control = arms(rollout, held, view)
    for is_treated, arm in ((True, treated), (False, control)):
        for number, name in enumerate(arm):
            there = is_there(view.devices.get(name), rollout.definition.silent_s)
            state = _S.WAITING if is_treated else _S.CONTROL
            made.assigned[name] = Assignment(name, rollout.stage, is_treated, there, number, state)
    # Whom a person's word left waiting in an earlier stage comes first, and is none of those that chance put here.
    left = [each for each in held.values() if each.treated and each.state is _S.WAITING]
    for number, each in enumerate(sorted(left, key=lambda each: (each.stage, each.place))):
        made.assigned[each.device] = replace(each, stage=rollout.stage, there=False, place=number - len(left))
    names = [] if rollout.is_rest else [*treated, *control]  # those held back are not observed
    end_, start = view.totals(names), view.totals_before(names, now.wall_s - BEFORE_S)
    bundle = rollout.definition.measured
    for name in names:
        known = end_.get(name)
        made.before[name] = between(bundle, start.get(name, Totals()), known) if known is not None else None
    devices = len(treated) + len(left)
    made.rollout = replace(
        rollout,
        phase=Phase.INSTALLING,
        since_s=now.service_s,
        patience_s=now.service_s,
        lost_s=0.0,
        look=0,
        sentence=f"{named(rollout)} takes {counted(devices, 'device')}; {len(control)} left alone.",
    )
    details = {"stage": rollout.stage, "devices": devices, "control": len(control)}
    made.notes.append(("rollout.stage", "rule:order", details))
    made.more = True


def install(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Offers the model to as many devices as the stage's pace allows; continues when all have finished."""
    rollout = made.rollout
    mine = of_stage(rollout, held)
    elapsed_s = now.service_s - rollout.since_s - rollout.lost_s
    begun = sum(each.offered_s is not None and each.offered_s >= rollout.since_s for each in mine)
    waiting = [each for each in mine if each.state is _S.WAITING]
    wanted = waiting[: max(0, due(rollout.current, begun + len(waiting), elapsed_s) - begun)]
    for assignment in wanted[:_AT_ONCE]:
        device = view.devices.get(assignment.device)
        if device is None:
            made.assigned[assignment.device] = replace(assignment, state=_S.WITHDRAWN)
            continue
        made.assigned[assignment.device] = after = offered(assignment, device, rollout, now.service_s)
        made.told[assignment.device] = offer(after, rollout)
    made.more = len(wanted) > _AT_ONCE
    if foresee(made, mine, now):
        return
    if not any(each.state in OPEN for each in of_stage(rollout, {**held, **made.assigned})):
        if rollout.is_rest:
            end(made, RolloutState.COMPLETED, "All stages were promoted, and those held back have the model.")
        else:
            observe(made, held, view, now)
    elif now.service_s - rollout.patience_s > rollout.current.patience_s:
        slow, have = sum(each.state in OPEN for each in mine), "has" if len(mine) == 1 else "have"
        pause(
            made,
            f"{named(rollout)}: {slow} of {counted(len(mine), 'device')} {have} not installed "
            f"within {rollout.current.patience_s:g} s; resume waits for as long again, promote and abort do not.",
            now,
        )


def go_back(made: Step, held: Mapping[str, Assignment], view: View, *, all_of_them: bool) -> None:
    """Tells devices what they ran before; those that are done too, or only those that are not."""
    rollout, version = made.rollout, made.rollout.definition.version
    leave = {_S.RETURNING, _S.RETURNED, _S.STRANDED} | (set() if all_of_them else {_S.DONE, _S.FAILED, _S.WITHDRAWN})
    affected = [each for each in held.values() if each.state in TOLD - leave]
    for each in affected[:_AT_ONCE]:
        device = view.devices.get(each.device)
        theirs = device is None or device.desired is None or device.desired.rollout != rollout.id
        if theirs or each.before_version == version:
            made.assigned[each.device] = replace(each, state=_S.RETURNED if all_of_them else _S.WITHDRAWN)
            continue
        made.told[each.device] = way_back(each, rollout)
        made.assigned[each.device] = replace(each, state=_S.RETURNING if all_of_them else _S.WITHDRAWN)
    for each in held.values():
        if each.state is _S.WAITING:
            made.assigned[each.device] = replace(each, state=_S.WITHDRAWN)
    made.more = bool(affected)
    if affected:
        return
    if not all_of_them:
        made.rollout = replace(rollout, unsettled=False)
        return
    returning = [each for each in held.values() if each.state is _S.RETURNING]
    silent_s = rollout.definition.silent_s
    if not any(is_there(view.devices.get(each.device), silent_s) for each in returning):
        later = f"; silent, and told when heard of again: {counted(len(returning), 'device')}" if returning else ""
        returned = sum(each.state is _S.RETURNED for each in held.values())
        sentence = f"{rollout.sentence} What ran before runs again on {counted(returned, 'device')}{later}."
        end(made, RolloutState.ROLLED_BACK, f"{sentence}{_stranded(rollout, held)}")


def _stranded(rollout: Rollout, held: Mapping[str, Assignment]) -> str:
    """Returns a sentence about devices that could not go back; "" if all could."""
    mine = [each for each in held.values() if each.state is _S.STRANDED]
    if not mine:
        return ""
    reasons = ", ".join(sorted({each.reason for each in mine}))
    return (
        f" {counted(len(mine), 'device')} could not go back ({reasons}), and {rollout.definition.brought} runs there: "
        "start a rollout of a version that is signed for."
    )
