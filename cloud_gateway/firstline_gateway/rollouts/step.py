"""One step of a rollout: computes the changes from its state, its devices' reports and the time. Pure.

empty           the stage waits for its first device; it is never promoted by a rule
installing      the stage's devices are offered the model, at its pace, until they finish or its patience ends
observing       both groups are observed, and the stage is judged
going back      devices under way stop after an abort; those that are done go back after a rollback, too
ended           the audits for the rollout end

The changes of a step take effect as a whole, or not at all. A stage is evaluated eight times within its time, then
at growing intervals. One evaluation (`evaluate`, `abort_early`) is a look: it counts the devices,
`judgement/verdict.py: judge` decides by their figures, and the `Look` stores its verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import asdict, replace

from firstline_core.fleet.rollout_documents import Look
from firstline_core.fleet.selector import parse_selector
from firstline_core.fleet.twin import DesiredVersion
from firstline_core.fleet.update import UpdateKind
from firstline_core.telemetry.wording import counted
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.device_progress import (
    DeviceView,
    after_offer,
    after_report,
    is_reachable,
    offer,
    rollback,
)
from firstline_gateway.rollouts.judgement.figures import BEFORE_S, Baseline, Period, StageDevice, between, compared
from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE
from firstline_gateway.rollouts.judgement.verdict import StageDecision, Verdict, judge
from firstline_gateway.rollouts.rollout import (
    BEGUN,
    LIVE,
    UNFINISHED,
    Assignment,
    Definition,
    DeviceState,
    Phase,
    Rollout,
    RolloutState,
    StageGroups,
    divide,
    due,
    place,
    stage_devices,
)

_AT_ONCE = 1000  # devices whose desired state one step changes; the next step is due at once
_S = DeviceState
_SHORTEST_S = 60.0  # between two evaluations

# Outcomes of a rollback for a device.
_RETURNED = "returned"
_LATE = "online, and not rolled back in time"
_SILENT = "silent, and rolled back when seen again"
_REPLACED = "taken by another rollout"
_GONE = "revoked or decommissioned"


class StepTime(NamedTuple):
    """The store's service clock, for durations; and wall time, for people and for the history of counts."""

    service_s: float
    wall_s: float


class StepView(Protocol):
    """The fleet as a step sees it: all of it at one moment."""

    @property
    def devices(self) -> Mapping[str, DeviceView]:
        """Returns the devices that belong to the fleet."""

    @property
    def alarm(self) -> str:
        """Returns the contract alarm of the version under rollout, in a sentence; "" without one."""

    def totals(self, names: Iterable[str]) -> Mapping[str, Totals]:
        """Returns the counts of devices so far."""

    def totals_before(self, names: Iterable[str], at_s: float) -> Mapping[str, Totals]:
        """Returns the counts of devices at a wall time."""

    def baselines(self) -> Mapping[str, Baseline]:
        """Returns the baseline of each observed device."""


@dataclass
class StepChanges:
    """The changes of one step.

    Args:
        rollout: its new state.
        assigned: devices whose assignment has changed.
        desired: new desired versions of devices.
        replaced: devices that lose the version while a newer rollout has, or may have, replaced it: that one must not
            restore it, and its own version stays desired.
        audits: devices that begin or end the audits of the judged bundles.
        before: for devices of a new stage, which are all in `assigned`, the period before it.
        start: counts of devices at the start of the observation.
        look: an evaluation.
        notes: for the audit log: an action, its actor, and its details.
        more: whether the next step is due at once.
        alarmed: whether the step aborted the rollout because of the contract's alarm.
    """

    rollout: Rollout
    assigned: dict[str, Assignment] = field(default_factory=dict)
    desired: dict[str, DesiredVersion] = field(default_factory=dict)
    replaced: dict[str, Assignment] = field(default_factory=dict)
    audits: dict[str, bool] = field(default_factory=dict)
    before: dict[str, Period | None] = field(default_factory=dict)
    start: dict[str, Totals] = field(default_factory=dict)
    look: Look | None = None
    notes: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    more: bool = False
    alarmed: bool = False

    def note(self, action: str, actor: str, **details: Any) -> None:
        """Adds an entry to the audit log."""
        self.notes.append((f"rollout.{action}", actor, details))

    def promote(self, actor: str, sentence: str) -> None:
        """Begins the next stage; after the devices held back the rollout is complete."""
        rollout = self.rollout
        if rollout.is_rest:
            self.end(RolloutState.COMPLETED, sentence)
            return
        self.note("promote", actor, stage=rollout.stage, sentence=sentence)
        self.rollout = replace(
            rollout,
            state=RolloutState.RUNNING,
            stage=rollout.stage + 1,
            phase=Phase.NONE,
            look=0,
            paused_s=None,
            lost_s=0.0,
            sentence=f"{rollout.stage_title} was promoted: {sentence}",
        )
        self.more = True

    def abort(self, rule: str, why: str, now: StepTime) -> None:
        """Rolls back every device that was offered the model, because of a rule.

        A person's abort (`commands.py`) leaves the devices that are done as they are.
        """
        sentence = f"{self.rollout.stage_title} was aborted: {why}"
        self.note("abort", f"rule:{rule}", stage=self.rollout.stage, sentence=sentence)
        self.rollout = replace(
            self.rollout,
            state=RolloutState.ROLLING_BACK,
            phase=Phase.NONE,
            paused_s=None,
            sentence=sentence,
            since_s=now.service_s,
        )
        for name in self.desired:  # the offers of this step are not sent
            del self.assigned[name]
        self.desired = {}
        self.more = True

    def pause(self, sentence: str, now: StepTime, *, rule: str = "patience") -> None:
        """Pauses the rollout until a person decides."""
        self.note("pause", f"rule:{rule}", stage=self.rollout.stage, sentence=sentence)
        self.rollout = replace(self.rollout, state=RolloutState.PAUSED, paused_s=now.service_s, sentence=sentence)

    def end(self, state: RolloutState, sentence: str) -> None:
        """Ends the rollout."""
        self.note(state, "rule:order", sentence=sentence)
        self.rollout = replace(self.rollout, state=state, phase=Phase.NONE, paused_s=None, sentence=sentence)


def step(rollout: Rollout, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> StepChanges:
    """Returns the changes of one step.

    Args:
        rollout: its state.
        assignments: its devices so far.
        view: of the fleet.
        now: the time.
    """
    changes = StepChanges(rollout)
    for name, assignment in assignments.items():
        after = after_report(assignment, view.devices.get(name), rollout)
        if after is not assignment:
            changes.assigned[name] = after
    devices = {**assignments, **changes.assigned}
    if rollout.state in BEGUN and view.alarm:
        # Whatever the rules are: the control group's alarm, if there is one too, does not make this version sound.
        changes.alarmed = True
        changes.abort("contract", view.alarm, now)
    elif rollout.state is RolloutState.RUNNING:
        if rollout.phase in (Phase.NONE, Phase.EMPTY):
            _begin(changes, devices, view, now)
        elif rollout.phase is Phase.INSTALLING:
            _install(changes, devices, view, now)
        elif now.service_s >= rollout.look_due_s:
            evaluate(changes, devices, view, now)
    elif rollout.state in (RolloutState.ROLLING_BACK, RolloutState.ABORTED):
        _go_back(changes, devices, view, now)
    _request_audits(changes, {**devices, **changes.assigned}, view)
    if changes.rollout.state not in LIVE:
        unsettled = bool(changes.audits or changes.desired or changes.more)
        changes.rollout = replace(changes.rollout, unsettled=unsettled)
        changes.more = unsettled
    return changes


def _request_audits(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView) -> None:
    """Has the devices of both groups audit the judged bundles while the rollout runs, with a certificate or without."""
    wanted = changes.rollout.state in BEGUN
    differing = [name for name in assignments if name in view.devices and view.devices[name].audited is not wanted]
    changes.audits = dict.fromkeys(differing[:_AT_ONCE], wanted)
    changes.more = changes.more or len(differing) > _AT_ONCE


def selected(rollout: Rollout, view: StepView) -> list[tuple[str, Mapping[str, str]]]:
    """Returns names and tags of the devices of a rollout."""
    selector = parse_selector(rollout.definition.selector)
    return [(name, device.tags) for name, device in sorted(view.devices.items()) if selector.matches(device.tags)]


def _is_from_before(assignment: Assignment, rollout: Rollout) -> bool:
    """Returns whether an earlier stage assigned a device. If the present one took it over, its turn is negative.

    The other devices of the present stage, which has not begun, are of a beginning that was interrupted.
    """
    return assignment.stage < rollout.stage or assignment.turn < 0


def _stage_groups(rollout: Rollout, assignments: Mapping[str, Assignment], view: StepView) -> StageGroups:
    """Returns the stage's devices in order, and its control group; the devices held back come last."""
    definition, devices = rollout.definition, selected(rollout, view)
    taken = {name for name, each in assignments.items() if each.treated and _is_from_before(each, rollout)}
    if rollout.is_rest:
        rest = sorted(
            (name for name, _ in devices if name not in taken), key=lambda name: place(definition.places_salt, name)
        )
        return StageGroups(tuple(rest), (), len(devices))
    return divide(definition.places_salt, rollout.current, devices, definition.held_back, taken)


def _without_devices(changes: StepChanges, now: StepTime, *, members: int) -> None:
    """Skips a stage whose devices all took the model in earlier stages; otherwise waits for its first device."""
    rollout = changes.rollout
    if members:
        sentence = f"{rollout.stage_title} is skipped: earlier stages took its devices, and the others are held back."
        changes.note("skip", "rule:order", stage=rollout.stage, sentence=sentence)
        changes.rollout = replace(rollout, stage=rollout.stage + 1, phase=Phase.NONE, sentence=sentence)
        changes.more = True
        return
    group = " and ".join(filter(None, (rollout.definition.selector, rollout.current.group)))
    sentence = f"{rollout.stage_title} has no device, because no device {f'matches {group}' if group else 'is here'}"
    if rollout.phase is Phase.NONE:
        changes.rollout = replace(
            rollout,
            phase=Phase.EMPTY,
            since_s=now.service_s,
            patience_from_s=now.service_s,
            sentence=f"{sentence}; it waits for one.",
        )
    elif now.service_s - rollout.patience_from_s > rollout.current.patience_s:
        changes.pause(f"{sentence}; resume waits for as long again, promote and abort do not.", now)


def _begin(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> None:
    """Assigns the stage's devices, and stores their counts of the time before."""
    rollout = changes.rollout
    treated, control, members = _stage_groups(rollout, assignments, view)
    # Devices that still waited when a person promoted the stage before come first; chance did not put them here, so
    # they are not compared.
    left = [each for each in assignments.values() if each.state is _S.WAITING and _is_from_before(each, rollout)]
    if not (treated or left or rollout.is_rest):
        _without_devices(changes, now, members=members)
        return
    for group, state in ((treated, _S.WAITING), (control, _S.CONTROL)):
        for number, name in enumerate(group):
            reachable = is_reachable(view.devices.get(name), rollout.definition.silent_s)
            changes.assigned[name] = Assignment(name, rollout.stage, state is _S.WAITING, reachable, number, state)
    for number, each in enumerate(sorted(left, key=lambda each: (each.stage, each.turn))):
        changes.assigned[each.device] = replace(each, stage=rollout.stage, reachable=False, turn=number - len(left))
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
        patience_from_s=now.service_s,
        lost_s=0.0,
        look=0,
        sentence=f"{rollout.stage_title} takes {counted(devices, 'device')}; {len(control)} in the control group.",
    )
    changes.note("stage", "rule:order", stage=rollout.stage, devices=devices, control=len(control))
    changes.more = True


def _install(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> None:
    """Offers the model to as many devices as the stage's pace allows; continues when all have finished."""
    rollout, patience_s = changes.rollout, changes.rollout.current.patience_s
    devices = stage_devices(rollout, assignments)
    elapsed_s = now.service_s - rollout.since_s - rollout.lost_s
    begun = sum(each.offered_s is not None and each.offered_s >= rollout.since_s for each in devices)
    waiting = [each for each in devices if each.state is _S.WAITING]
    due_devices = waiting[: max(0, due(rollout.current, begun + len(waiting), elapsed_s) - begun)]
    for assignment in due_devices[:_AT_ONCE]:
        device = view.devices.get(assignment.device)
        if device is None:
            changes.assigned[assignment.device] = replace(assignment, state=_S.WITHDRAWN)
            continue
        changes.assigned[assignment.device] = after = after_offer(assignment, device, rollout, now.service_s)
        changes.desired[assignment.device] = offer(after, rollout)
    changes.more = len(due_devices) > _AT_ONCE
    if abort_early(changes, devices, now):
        return
    if not any(each.state in UNFINISHED for each in stage_devices(rollout, {**assignments, **changes.assigned})):
        if rollout.is_rest:
            changes.end(RolloutState.COMPLETED, "All stages were promoted, and those held back have the model.")
        else:
            observe(changes, assignments, view, now)
    elif now.service_s - rollout.patience_from_s > patience_s:
        slow, have = sum(each.state in UNFINISHED for each in devices), "has" if len(devices) == 1 else "have"
        changes.pause(
            f"{rollout.stage_title}: {slow} of {counted(len(devices), 'device')} {have} not installed "
            f"within {patience_s:g} s; resume waits for as long again, promote and abort do not.",
            now,
        )


def _go_back(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> None:
    """Sets the previous desired version of devices; of those that are done, only in a rollback."""
    rollout, version = changes.rollout, changes.rollout.definition.version
    is_rollback = rollout.state is RolloutState.ROLLING_BACK
    leave = {_S.RETURNING, _S.RETURNED, _S.STRANDED}
    leave |= set() if is_rollback else {_S.DONE, _S.FAILED, _S.WITHDRAWN}
    # Those that wait for a retry included: their first offer still holds.
    affected = [each for each in assignments.values() if each.offered_s is not None and each.state not in leave]
    for each in affected[:_AT_ONCE]:
        device = view.devices.get(each.device)
        replaced = device is not None and (device.desired is None or device.desired.rollout != rollout.id)
        stays = each.before_version == version
        returned = stays or replaced or device is None
        state = (_S.RETURNED if returned else _S.RETURNING) if is_rollback else _S.WITHDRAWN
        reason = "" if each.state is _S.WITHDRAWN else each.reason  # an offer that expired has not failed
        changes.assigned[each.device] = replace(each, state=state, reason=reason)
        if not stays and (replaced or device is None):
            changes.replaced[each.device] = each
        if not stays and not replaced:  # also of a revoked device, which may join again
            changes.desired[each.device] = rollback(each, rollout)
    for each in assignments.values():
        if each.state is _S.WAITING and each.offered_s is None:
            changes.assigned[each.device] = replace(each, state=_S.WITHDRAWN)
    changes.more = bool(affected)
    if is_rollback and not affected:
        _end_rollback(changes, assignments, view, now)


def _end_rollback(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> None:
    """Ends a rollback when no online device has to return any more, or when the patience of the stage has ended."""
    rollout = changes.rollout
    outcomes = {
        name: _rollback_outcome(each, view.devices.get(name), rollout)
        for name, each in assignments.items()
        if each.state in (_S.RETURNING, _S.RETURNED)
    }
    counts = Counter(outcomes.values())
    if counts[_LATE] and now.service_s - rollout.since_s <= rollout.current.patience_s:
        return
    for name, outcome in outcomes.items():
        if outcome == _REPLACED:
            changes.assigned[name] = replace(assignments[name], state=_S.WITHDRAWN)
    again = counted(counts.pop(_RETURNED, 0), "device")
    others = "".join(f"; {outcome}: {counted(number, 'device')}" for outcome, number in sorted(counts.items()))
    sentence = f"{rollout.sentence} The previous version runs again on {again}{others}."
    changes.end(RolloutState.ROLLED_BACK, f"{sentence}{_stranded(rollout, assignments)}")


def _rollback_outcome(assignment: Assignment, device: DeviceView | None, rollout: Rollout) -> str:
    """Returns the outcome of a rollback for a device, in words."""
    if device is None:
        return _GONE
    own = rollout.id, assignment.before.rollout if assignment.before is not None else rollout.id
    if device.desired is not None and device.desired.rollout not in own:
        return _REPLACED
    if assignment.state is _S.RETURNED:
        return _RETURNED
    return _LATE if is_reachable(device, rollout.definition.silent_s) else _SILENT


def _stranded(rollout: Rollout, assignments: Mapping[str, Assignment]) -> str:
    """Returns a sentence about devices that could not go back; "" if all could."""
    stranded = [each for each in assignments.values() if each.state is _S.STRANDED]
    if not stranded:
        return ""
    reasons = ", ".join(sorted({each.reason for each in stranded}))
    return (
        f" {counted(len(stranded), 'device')} could not go back ({reasons}), and {rollout.definition.title} runs "
        "there: start a rollout of a version that is still signed."
    )


def observe(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> None:
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
        patience_from_s=now.service_s + soak_s,
        look_due_s=now.service_s + min(soak_s, _interval_s(soak_s, 0.0)),
        sentence=f"{rollout.stage_title} is observed for {soak_s:g} s.",
    )
    changes.more = not soak_s
    changes.note("observe", "rule:order", stage=rollout.stage, devices=len(names))


def evaluate(changes: StepChanges, assignments: Mapping[str, Assignment], view: StepView, now: StepTime) -> None:
    """Judges the stage by the counts so far: promotes it, aborts the rollout, or waits."""
    rollout, stage = changes.rollout, changes.rollout.current
    devices = stage_devices(rollout, assignments)
    failed = sum(each.state in (_S.FAILED, _S.SILENT) for each in devices)
    installed = sum(each.state is _S.DONE for each in devices)
    elapsed_s = now.service_s - rollout.since_s
    over = elapsed_s >= stage.soak_s
    verdict = _verdict_on(rollout, installed, failed, _observed(rollout, assignments, view), over=over)
    # The patience begins at the end of the stage's time, or when a person resumed the rollout, if that was later.
    patient_s = max(rollout.patience_from_s, rollout.since_s + stage.soak_s) + stage.patience_s
    due_s = now.service_s + _interval_s(stage.soak_s, elapsed_s)
    changes.rollout = replace(
        rollout,
        look_due_s=min(due_s, patient_s) if over and patient_s > now.service_s else due_s,
        sentence=f"{rollout.stage_title}: {verdict.sentence}",
    )
    _record(changes, verdict, now)
    if verdict.decision is StageDecision.ABORT:
        changes.abort(verdict.rule, verdict.sentence, now)
    elif verdict.decision is StageDecision.PROMOTE:
        changes.promote(f"rule:{verdict.rule}", verdict.sentence)
    elif over and now.service_s >= patient_s:
        changes.pause(
            f"{rollout.stage_title}: {verdict.sentence} Resume continues the evaluation; promote and abort end it.", now
        )


def abort_early(changes: StepChanges, devices: Iterable[Assignment], now: StepTime) -> bool:
    """Aborts if enough devices failed for the first evaluation to abort in any case; returns whether it did."""
    tried = [each for each in devices if each.state not in (_S.AWAY, _S.WITHDRAWN)]
    failed = sum(each.state is _S.FAILED for each in tried)
    if not failed:
        return False
    verdict = _verdict_on(changes.rollout, len(tried) - failed, failed, _Observed([], [], []), over=False)
    if verdict.decision is not StageDecision.ABORT:
        return False
    _record(changes, verdict, now)
    changes.abort(verdict.rule, verdict.sentence, now)
    return True


class _Observed(NamedTuple):
    """The devices that a stage is judged by; see `judge`."""

    treated: list[StageDevice]
    control: list[StageDevice]
    running: list[StageDevice]


def _observed(rollout: Rollout, assignments: Mapping[str, Assignment], view: StepView) -> _Observed:
    """Returns the stage's devices and its control group that were online when it began, and all that run the model."""
    definition, baselines = rollout.definition, view.baselines()
    observed = [
        each
        for each in assignments.values()
        if each.stage == rollout.stage
        and (each.reachable or each.state is _S.DONE)
        and each.device in baselines
        and each.device in view.devices  # neither decommissioned nor revoked
    ]
    totals = view.totals(each.device for each in observed)
    groups = _Observed([], [], [])
    for each in observed:
        shown = view.devices[each.device]
        device = compared(
            definition.judged_bundle,
            *baselines[each.device],
            totals.get(each.device),
            silent=not is_reachable(shown, definition.silent_s),
            # A device that was away or silent may have answered with the version before during the observation.
            audits_of=definition.version if each.state is _S.DONE and definition.what is UpdateKind.MODEL else None,
        )
        device = _with_audits(device, shown, definition)
        if each.reachable:
            (groups.treated if each.treated else groups.control).append(device)
        if each.state is _S.DONE and definition.what is UpdateKind.MODEL:
            groups.running.append(device)
    return groups


def _with_audits(device: StageDevice, shown: DeviceView, definition: Definition) -> StageDevice:
    """Returns a device with the variant that it runs, its board, and the reason why it audits nothing."""
    model, device = shown.model, replace(device, board=shown.board)
    if model is not None and not model.full_digest:
        return replace(device, variant=model.variant, audits_off="the bundle has no full model")
    variant = model.variant if model is not None else definition.bundle
    return replace(device, variant=variant, audits_off=f"{shown.audits_off} is 0" if shown.audits_off else "")


def _verdict_on(rollout: Rollout, installed: int, failed: int, observed: _Observed, *, over: bool) -> Verdict:
    definition = rollout.definition
    return judge(
        definition.rules,
        stages=len(definition.stages) + 1,  # + 1: the last stage, all remaining devices, judged by their installations
        look=rollout.look + 1,
        over=over,
        installed=installed,
        failed=failed,
        treated=observed.treated,
        control=observed.control,
        running=observed.running,
        seed=(rollout.seed + 1_000_003 * rollout.stage) % 2**63,
    )


def _record(changes: StepChanges, verdict: Verdict, now: StepTime) -> None:
    rollout = changes.rollout
    changes.rollout = replace(rollout, look=verdict.look)
    changes.look = Look(stage=rollout.stage, at_s=now.wall_s, **asdict(verdict))
    changes.note("look", f"rule:{verdict.rule}", **msgspec.to_builtins(changes.look))


def _interval_s(soak_s: float, elapsed_s: float) -> float:
    """Returns the time until the next evaluation; a stage that is held for weeks has some dozens of them."""
    return max(_SHORTEST_S, soak_s / LOOKS_PER_STAGE, elapsed_s / LOOKS_PER_STAGE)
