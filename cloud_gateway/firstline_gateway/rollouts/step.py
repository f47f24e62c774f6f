"""One step of a rollout: from how it stands, what its devices say and the time to what changes. Pure.

installing      the stage's devices are offered the model, at its pace, and have until its patience ends
observing       both groups are looked at, eight times within the stage's time, then on at the same intervals
going back      after an abort: those under way stop; after a rollback those that are done go back, too
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from firstline_core.fleet.rollout import FindingState, Look
from firstline_core.fleet.twin import DesiredModel
from firstline_gateway.fleet.counting import Totals
from firstline_gateway.fleet.selector import parse_selector
from firstline_gateway.rollouts.definition import OPEN, TOLD, Assignment, DeviceState, Phase, Rollout
from firstline_gateway.rollouts.judgement.periods import Period
from firstline_gateway.rollouts.judgement.spending import LOOKS
from firstline_gateway.rollouts.judgement.verdict import Decision, Finding, Verdict, judge
from firstline_gateway.rollouts.measuring import BEFORE_S, between, compared
from firstline_gateway.rollouts.stages import divide, due, place
from firstline_gateway.rollouts.standing import Seen, is_there, moved, offered, target, way_back
from firstline_gateway.rollouts.states import RolloutState

AT_ONCE = 1000
"""So many devices are told in one step; the next one follows at once."""
_SHORTEST_S = 60.0  # between two looks

_S = DeviceState


class Now(NamedTuple):
    """The store's service clock, by which things last; and wall time, which is shown, and by which history is kept."""

    service_s: float
    wall_s: float


class View(Protocol):
    """What a step sees of the fleet: all of it at one moment."""

    @property
    def devices(self) -> Mapping[str, Seen]:
        """Those that belong to the fleet."""
        ...

    def totals(self, names: Iterable[str]) -> Mapping[str, Totals]:
        """What they counted so far."""
        ...

    def totals_before(self, names: Iterable[str], at_s: float) -> Mapping[str, Totals]:
        """What they had counted by a wall time."""
        ...

    def measured(self) -> Mapping[str, tuple[Period | None, Totals]]:
        """By what the rollout's devices are compared."""
        ...


@dataclass
class Step:
    """What changes.

    Args:
        rollout: as it is after.
        assigned: devices whose standing is another one now.
        told: what devices are to hear about the bundle.
        before: what they did in the time before their stage.
        start: what they had counted when they began to be observed.
        look: that was had.
        notes: for the audit trail: an action, who did it, and its numbers.
        more: whether the next step has something to do at once.
    """

    rollout: Rollout
    assigned: dict[str, Assignment] = field(default_factory=dict)
    told: dict[str, DesiredModel] = field(default_factory=dict)
    before: dict[str, Period | None] = field(default_factory=dict)
    start: dict[str, Totals] = field(default_factory=dict)
    look: Look | None = None
    notes: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    more: bool = False


def step(rollout: Rollout, held: Mapping[str, Assignment], view: View, now: Now) -> Step:
    """One step.

    Args:
        rollout: as it stands.
        held: its devices so far.
        view: of the fleet.
        now: the time.
    """
    made = Step(rollout)
    for name, assignment in held.items():
        after = moved(assignment, view.devices.get(name), rollout)
        if after is not assignment:
            made.assigned[name] = after
    devices = {**held, **made.assigned}
    if rollout.state is RolloutState.RUNNING:
        if rollout.phase is Phase.NONE:
            _begin(made, devices, view, now)
        elif rollout.phase is Phase.INSTALLING:
            _install(made, devices, view, now)
        elif now.service_s >= rollout.look_due_s:
            _look(made, devices, view, now)
    elif rollout.state is RolloutState.ROLLING_BACK:
        _go_back(made, devices, view, all_of_them=True)
    elif rollout.unsettled:
        _go_back(made, devices, view, all_of_them=False)
    return made


def meant(rollout: Rollout, view: View) -> list[tuple[str, Mapping[str, str]]]:
    """Names and tags of the devices that a rollout is for."""
    selector = parse_selector(rollout.definition.selector)
    return [(name, device.tags) for name, device in sorted(view.devices.items()) if selector.matches(device.tags)]


def arms(rollout: Rollout, held: Mapping[str, Assignment], view: View) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whom the stage takes, in their order, and whom it leaves alone; those held back are the last to be taken."""
    definition, found = rollout.definition, meant(rollout, view)
    taken = {name for name, assignment in held.items() if assignment.treated}
    if rollout.is_rest:
        rest = sorted((name for name, _ in found if name not in taken), key=lambda name: place(rollout.salt, name))
        return tuple(rest), ()
    divided = divide(rollout.salt, definition.stages, rollout.stage, found, definition.held_back)
    treated = tuple(name for name in divided.treated if name not in taken)
    return treated, tuple(name for name in divided.control if name not in taken)


def _begin(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    """Has the stage's devices named, and what they did before kept."""
    rollout = made.rollout
    treated, control = arms(rollout, held, view)
    for is_treated, arm in ((True, treated), (False, control)):
        for number, name in enumerate(arm):
            there = is_there(view.devices.get(name), rollout.definition.silent_s)
            state = _S.WAITING if is_treated else _S.CONTROL
            made.assigned[name] = Assignment(name, rollout.stage, is_treated, there, number, state)
    names = [*treated, *control]
    end, start = view.totals(names), view.totals_before(names, now.wall_s - BEFORE_S)
    bundle = rollout.definition.measured
    for name in names:
        known = end.get(name)
        made.before[name] = between(bundle, start.get(name, Totals()), known) if known is not None else None
    made.rollout = replace(
        rollout,
        phase=Phase.INSTALLING,
        since_s=now.service_s,
        patience_s=now.service_s,
        lost_s=0.0,
        look=0,
        sentence=f"{_stage(rollout)} takes {len(treated)} devices; {len(control)} are left alone.",
    )
    details = {"stage": rollout.stage, "devices": len(treated), "control": len(control)}
    made.notes.append(("rollout.stage", "rule:order", details))
    made.more = True


def _install(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    rollout = made.rollout
    mine = _of_stage(rollout, held)
    elapsed_s = now.service_s - rollout.since_s - rollout.lost_s
    wanted = due(rollout.current, len(mine), elapsed_s)
    waiting = [each for each in mine if each.state is _S.WAITING and each.place < wanted]
    for assignment in waiting[:AT_ONCE]:
        device = view.devices.get(assignment.device)
        if device is None:
            made.assigned[assignment.device] = replace(assignment, state=_S.WITHDRAWN)
            continue
        made.assigned[assignment.device] = offered(assignment, device, rollout, now.service_s)
        made.told[assignment.device] = target(rollout)
    made.more = len(waiting) > AT_ONCE
    verdict = _foreseen(rollout, mine)
    if verdict is not None:
        _record(made, verdict, now)
        _abort(made, verdict, now)
    elif not any(each.state in OPEN for each in _of_stage(rollout, {**held, **made.assigned})):
        _observe(made, held, view, now)
    elif now.service_s - rollout.patience_s > rollout.current.patience_s:
        slow = sum(each.state in OPEN for each in mine)
        _pause(
            made,
            f"{_stage(rollout)}: {slow} of {len(mine)} devices have not installed within "
            f"{rollout.current.patience_s:g} s; resume waits for as long again, promote and abort do not.",
            now,
        )


def _foreseen(rollout: Rollout, mine: Iterable[Assignment]) -> Verdict | None:
    """The first look's verdict where so many have failed that it will abort whatever the rest does."""
    tried = [each for each in mine if each.state not in (_S.AWAY, _S.WITHDRAWN)]
    failed = sum(each.state is _S.FAILED for each in tried)
    if not failed:
        return None
    found = _judged(rollout, rollout.look + 1, len(tried) - failed, failed, ((), ()), over=False)
    return found if found.decision is Decision.ABORT else None


def _observe(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    """The installations have ended; from here on both groups are observed."""
    rollout = made.rollout
    if rollout.is_rest:
        _end(made, RolloutState.COMPLETED, "All stages were promoted, and those held back have the model.", "order")
        return
    names = [name for name, each in held.items() if each.stage == rollout.stage]
    totals = view.totals(names)
    made.start = {name: totals.get(name, Totals()) for name in names}
    soak_s = rollout.current.soak_s
    made.rollout = replace(
        rollout,
        phase=Phase.OBSERVING,
        since_s=now.service_s,
        patience_s=now.service_s + soak_s,
        look_due_s=now.service_s + min(soak_s, _interval_s(soak_s)),
        sentence=f"{_stage(rollout)} is observed for {soak_s:g} s.",
    )
    made.more = not soak_s
    made.notes.append(("rollout.observe", "rule:order", {"stage": rollout.stage, "devices": len(names)}))


def _look(made: Step, held: Mapping[str, Assignment], view: View, now: Now) -> None:
    rollout = made.rollout
    bundle, kept = rollout.definition.measured, view.measured()
    there = [each for each in held.values() if each.stage == rollout.stage and each.there and each.device in kept]
    totals = view.totals(each.device for each in there)
    groups: tuple[list[Any], list[Any]] = ([], [])
    for each in there:
        before, start = kept[each.device]
        groups[0 if each.treated else 1].append(compared(bundle, before, start, totals.get(each.device)))
    mine = _of_stage(rollout, held)
    failed = sum(each.state in (_S.FAILED, _S.SILENT) for each in mine)
    installed = sum(each.state is _S.DONE for each in mine)
    over = now.service_s - rollout.since_s >= rollout.current.soak_s
    verdict = _judged(rollout, rollout.look + 1, installed, failed, groups, over=over)
    made.rollout = replace(
        rollout,
        look=verdict.look,
        look_due_s=now.service_s + _interval_s(rollout.current.soak_s),
        sentence=f"{_stage(rollout)}: {verdict.sentence}",
    )
    _record(made, verdict, now)
    if verdict.decision is Decision.ABORT:
        _abort(made, verdict, now)
    elif verdict.decision is Decision.PROMOTE:
        promote(made, f"rule:{verdict.rule}", verdict.sentence)
    elif over and now.service_s - rollout.patience_s > rollout.current.patience_s:
        _pause(made, f"{_stage(rollout)}: {verdict.sentence} Resume looks on; promote and abort do not.", now)


def promote(made: Step, actor: str, sentence: str) -> None:
    """The stage is taken for sound, and the next one follows; after those held back the rollout is complete."""
    rollout = made.rollout
    if rollout.is_rest:
        _end(made, RolloutState.COMPLETED, sentence, "order")
        return
    made.notes.append(("rollout.promote", actor, {"stage": rollout.stage, "sentence": sentence}))
    made.rollout = replace(
        rollout,
        state=RolloutState.RUNNING,
        stage=rollout.stage + 1,
        phase=Phase.NONE,
        look=0,
        paused_s=None,
        lost_s=0.0,
        sentence=f"{_stage(rollout)} was promoted: {sentence}",
    )
    made.more = True


def _abort(made: Step, verdict: Verdict, now: Now) -> None:
    sentence = f"{_stage(made.rollout)} was aborted: {verdict.sentence}"
    made.rollout = replace(
        made.rollout, state=RolloutState.ROLLING_BACK, phase=Phase.NONE, sentence=sentence, since_s=now.service_s
    )
    made.told = {}  # they hear in the next step what they are to run instead
    made.notes.append(("rollout.abort", f"rule:{verdict.rule}", {"stage": made.rollout.stage, "sentence": sentence}))
    made.more = True


def _go_back(made: Step, held: Mapping[str, Assignment], view: View, *, all_of_them: bool) -> None:
    """Tells devices what they ran before; those that are done too, or only those that are not."""
    rollout, version = made.rollout, made.rollout.definition.version
    leave = {_S.RETURNING, _S.RETURNED} | (set() if all_of_them else {_S.DONE, _S.FAILED, _S.WITHDRAWN})
    affected = [each for each in held.values() if each.state in TOLD - leave]
    for each in affected[:AT_ONCE]:
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
        later = f"; {len(returning)} are silent, and go back when they return" if returning else ""
        returned = sum(each.state is _S.RETURNED for each in held.values())
        sentence = f"{rollout.sentence} {returned} devices run what they ran before{later}."
        _end(made, RolloutState.ROLLED_BACK, sentence, "order")


def _end(made: Step, state: RolloutState, sentence: str, rule: str) -> None:
    made.rollout = replace(made.rollout, state=state, phase=Phase.NONE, paused_s=None, sentence=sentence)
    made.notes.append((f"rollout.{state}", f"rule:{rule}", {"sentence": sentence}))


def _pause(made: Step, sentence: str, now: Now) -> None:
    made.rollout = replace(made.rollout, state=RolloutState.PAUSED, paused_s=now.service_s, sentence=sentence)
    made.notes.append(("rollout.pause", "rule:patience", {"stage": made.rollout.stage, "sentence": sentence}))


def _record(made: Step, verdict: Verdict, now: Now) -> None:
    rollout = made.rollout
    made.rollout = replace(rollout, look=verdict.look)
    findings = tuple(_finding(each) for each in verdict.findings)
    made.look = Look(
        rollout.stage, verdict.look, now.wall_s, verdict.decision.value, verdict.rule, verdict.sentence, findings
    )
    made.notes.append(("rollout.look", f"rule:{verdict.rule}", msgspec.to_builtins(made.look)))


def _judged(
    rollout: Rollout,
    look: int,
    installed: int,
    failed: int,
    groups: tuple[Any, Any],
    *,
    over: bool,
) -> Verdict:
    definition = rollout.definition
    return judge(
        definition.rules,
        stages=len(definition.stages) + 1,  # those held back are judged by their installations
        look=look,
        over=over,
        installed=installed,
        failed=failed,
        treated=groups[0],
        control=groups[1],
        seed=(rollout.seed + 1_000_003 * rollout.stage) % 2**63,
    )


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


def finite(value: float) -> float | None:
    """As documents have it: null where it is not known, or has no bound."""
    return value if math.isfinite(value) else None


def _of_stage(rollout: Rollout, held: Mapping[str, Assignment]) -> list[Assignment]:
    return sorted(
        (each for each in held.values() if each.treated and each.stage == rollout.stage), key=lambda each: each.place
    )


def _interval_s(soak_s: float) -> float:
    return max(_SHORTEST_S, soak_s / LOOKS)


def _stage(rollout: Rollout) -> str:
    stages = len(rollout.definition.stages)
    return "The rest" if rollout.is_rest else f"Stage {rollout.stage + 1} of {stages}"
