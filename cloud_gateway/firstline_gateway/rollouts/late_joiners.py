"""Devices that join late are offered the version of the latest completed rollout that selects them. Pure.

Joining is to be let in, or to be given tags that a rollout's selector means. This is not judged: its stages were
judged,
and the device goes back by itself where the model does not run on it. Devices that were away when the rollout was
completed are also followed here until they report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from firstline_gateway.fleet.selector import parse_selector
from firstline_gateway.rollouts.changes import Now, Step, View
from firstline_gateway.rollouts.definition import Assignment, DeviceState, Rollout
from firstline_gateway.rollouts.device_progress import moved, offer, offered
from firstline_gateway.rollouts.stage_steps import meant

_AT_ONCE = 1000
_NAMED = 20  # in the audit log


def in_force(completed: Iterable[Rollout]) -> list[Rollout]:
    """Returns the completed rollouts that devices can still join: newest first, none that a newer one covers."""
    found: list[Rollout] = []
    for rollout in sorted(completed, key=_order, reverse=True):
        mine = rollout.definition
        newer = (each.definition for each in found if each.definition.place == mine.place)
        if not any(each.selector in ("", mine.selector) for each in newer):
            found.append(rollout)
    return found


def joined(
    rollout: Rollout,
    completed: Sequence[Rollout],
    held: Mapping[str, Assignment],
    view: View,
    now: Now,
    *,
    ended: Sequence[Rollout],
    busy: Callable[[list[str]], set[str]],
) -> Step:
    """The step that tells who joined a completed rollout.

    Args:
        rollout: in force.
        completed: all that are, of the same place.
        held: its devices so far.
        view: of the fleet.
        now: the time.
        ended: those of the same place that were aborted or taken back.
        busy: those of some devices that a rollout of the same place has to do with now.
    """
    made = Step(rollout)
    for name, assignment in held.items():
        device = view.devices.get(name)
        if device is not None and device.desired is not None and device.desired.rollout == rollout.id:
            after = moved(assignment, device, rollout)
            if after is not assignment:
                made.assigned[name] = after
    newer = [parse_selector(each.definition.selector) for each in completed if _order(each) > _order(rollout)]
    older = {each.id for each in (*completed, *ended) if _order(each) < _order(rollout)}
    found = [
        name
        for name, tags in meant(rollout, view)
        if _is_new(name, view, older, held) and not any(selector.matches(tags) for selector in newer)
    ]
    taken = busy(found) if found else set()
    told = [name for name in found if name not in taken][:_AT_ONCE]
    for name in told:
        place = len(held) + len(made.told)
        fresh = Assignment(name, rollout.stage, True, False, place, DeviceState.WAITING)
        made.assigned[name] = after = offered(fresh, view.devices[name], rollout, now.service_s)
        made.told[name] = offer(after, rollout)
    if told:
        made.notes.append(("rollout.join", "rule:join", {"devices": len(told), "names": told[:_NAMED]}))
    made.more = len(found) - len(taken) > _AT_ONCE
    return made


def _is_new(name: str, view: View, older: set[str], held: Mapping[str, Assignment]) -> bool:
    """Whether a device has no such word of the fleet that holds, or one that was current before this one was."""
    said = view.devices[name].desired
    return said is None or said.undone or (name not in held and said.rollout in older)


def _order(rollout: Rollout) -> tuple[float, str]:
    return rollout.started_s, rollout.id
