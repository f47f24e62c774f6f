"""Devices that join late are offered the version of the latest completed rollout that selects them. Pure.

A device joins when it is accepted, or when it gets tags that a rollout's selector matches. Late joiners are not judged:
the rollout's stages were judged, and the device goes back by itself if the model does not run on it. Devices that were
away when the rollout was completed are also followed here until they report. A version whose contract has alarmed is
offered to no more devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from firstline_core.fleet.selector import parse_selector
from firstline_gateway.rollouts.device_progress import after_offer, after_report, offer
from firstline_gateway.rollouts.rollout import Assignment, DeviceState, Rollout
from firstline_gateway.rollouts.step import StepChanges, StepTime, StepView, selected

_AT_ONCE = 1000
_NAMED = 20  # in the audit log


def in_force(completed: Iterable[Rollout]) -> list[Rollout]:
    """Returns the completed rollouts that devices can join: newest first, without those that a newer one covers."""
    found: list[Rollout] = []
    for rollout in sorted(completed, key=_order, reverse=True):
        definition = rollout.definition
        newer = (each.definition for each in found if each.definition.document_key == definition.document_key)
        if not any(each.selector in ("", definition.selector) for each in newer):
            found.append(rollout)
    return found


def join_changes(
    rollout: Rollout,
    completed: Sequence[Rollout],
    assignments: Mapping[str, Assignment],
    view: StepView,
    now: StepTime,
    *,
    ended: Sequence[Rollout],
    busy: Callable[[list[str]], set[str]],
) -> StepChanges:
    """Returns the changes that offer a completed rollout's version to devices that join it.

    Args:
        rollout: in force.
        completed: all completed rollouts of the same document key.
        assignments: its devices so far.
        view: of the fleet.
        now: the time.
        ended: rollouts of the same document key that were aborted or rolled back.
        busy: returns those of the given devices that a live rollout of the same document key has assigned.
    """
    changes = StepChanges(rollout)
    for name, assignment in assignments.items():
        device = view.devices.get(name)
        if device is not None and device.desired is not None and device.desired.rollout == rollout.id:
            after = after_report(assignment, device, rollout)
            if after is not assignment:
                changes.assigned[name] = after
    newer = [parse_selector(each.definition.selector) for each in completed if _order(each) > _order(rollout)]
    older = {each.id for each in (*completed, *ended) if _order(each) < _order(rollout)}
    joining = [
        name
        for name, tags in ([] if view.alarm else selected(rollout, view))
        if _can_join(name, view, older, assignments) and not any(selector.matches(tags) for selector in newer)
    ]
    taken = busy(joining) if joining else set()
    offered = [name for name in joining if name not in taken][:_AT_ONCE]
    for turn, name in enumerate(offered, len(assignments)):
        new = Assignment(name, rollout.stage, treated=True, reachable=False, turn=turn, state=DeviceState.WAITING)
        changes.assigned[name] = after = after_offer(new, view.devices[name], rollout, now.service_s)
        changes.desired[name] = offer(after, rollout)
    if offered:
        changes.note("join", "rule:join", devices=len(offered), names=offered[:_NAMED])
    changes.more = len(joining) - len(taken) > _AT_ONCE
    return changes


def _can_join(name: str, view: StepView, older: set[str], assignments: Mapping[str, Assignment]) -> bool:
    """Returns whether a device has no valid desired version, or one that an older rollout set."""
    desired = view.devices[name].desired
    return desired is None or desired.undone or (name not in assignments and desired.rollout in older)


def _order(rollout: Rollout) -> tuple[float, str]:
    return rollout.started_s, rollout.id
