"""The commands of an operator: the states that allow each, its effect on devices, and the changes that it makes. Pure.

Devices hear of a command in the next steps of the rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec.structs import replace

from firstline_core.errors import RequestError
from firstline_core.telemetry.wording import counted
from firstline_gateway.rollouts.rollout import BEGUN, Assignment, DeviceState, Phase, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepChanges, StepTime


class Command(StrEnum):
    """A command of an operator for a rollout."""

    APPROVE = "approve"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    RETRY = "retry"
    ABORT = "abort"
    ROLLBACK = "rollback"


_S = DeviceState
_LEADS: Mapping[Command, Mapping[RolloutState, RolloutState]] = MappingProxyType(
    {
        Command.APPROVE: {RolloutState.DRAFT: RolloutState.APPROVED},
        Command.START: {RolloutState.APPROVED: RolloutState.RUNNING},
        Command.PAUSE: {RolloutState.RUNNING: RolloutState.PAUSED},
        Command.RESUME: {RolloutState.PAUSED: RolloutState.RUNNING},
        # The next step determines the next stage, or that there is none.
        Command.PROMOTE: dict.fromkeys(BEGUN, RolloutState.RUNNING),
        Command.RETRY: {state: state for state in BEGUN},
        Command.ABORT: dict.fromkeys((RolloutState.DRAFT, RolloutState.APPROVED, *BEGUN), RolloutState.ABORTED),
        Command.ROLLBACK: dict.fromkeys(
            (*BEGUN, RolloutState.COMPLETED, RolloutState.ABORTED), RolloutState.ROLLING_BACK
        ),
    }
)
"""By command, the state that it leads to from each state that allows it."""
_STAGE_BEGAN = (Phase.INSTALLING, Phase.OBSERVING)
_RETRIED = (_S.FAILED, _S.SILENT, _S.WITHDRAWN)


def state_after(command: Command, state: RolloutState) -> RolloutState:
    """Returns the state that a command leads to.

    Raises:
        RequestError: the command is not allowed in this state; the message lists the allowed ones.
    """
    after = _LEADS[command].get(state)
    if after is None:
        allowed = sorted(allowed_commands(state))
        offer = f"it allows: {', '.join(allowed)}" if allowed else "nothing more can be done to it"
        raise RequestError(f"A rollout that is {state.replace('_', ' ')} does not allow {command}; {offer}.")
    return after


def allowed_commands(state: RolloutState) -> tuple[Command, ...]:
    """Returns the commands that a state allows."""
    return tuple(each for each, leads in _LEADS.items() if state in leads)


def consequences(rollout: Rollout, counts: Mapping[str, int]) -> dict[str, str]:
    """Returns the effect of each allowed command on the devices now.

    Args:
        rollout: its state.
        counts: number of devices by state, without the control group.
    """
    waiting, done = counts.get(_S.WAITING, 0), counts.get(_S.DONE, 0)
    running = sum(counts.get(each, 0) for each in (_S.OFFERED, _S.UNDER_WAY, _S.AWAY, _S.SILENT))
    again = sum(counts.get(each, 0) for each in _RETRIED)
    ended = f"stopped under way: {running}; never offered: {waiting}."
    effects = {
        Command.APPROVE: "It can be started then; nothing happens to devices before.",
        Command.START: f"{_next_stage(rollout, 0)} A rollout of {rollout.definition.bundle} that runs is aborted.",
        Command.PAUSE: f"No device is offered the model meanwhile; waiting: {waiting}; under way, going on: {running}.",
        Command.RESUME: f"It goes on where it was paused; waiting, offered the model: {waiting}.",
        Command.PROMOTE: f"The stage counts as sound by your decision. {_next_stage(rollout, rollout.stage + 1)}",
        Command.RETRY: f"The model is offered again to {counted(again, 'device')} (failed, silent or withdrawn).",
        Command.ABORT: f"The new version stays on {counted(done, 'device')}; {ended}",
        Command.ROLLBACK: f"The previous version runs again on {counted(done, 'device')}; {ended}",
    }
    return {command: effects[command] for command in allowed_commands(rollout.state)}


def _next_stage(rollout: Rollout, number: int) -> str:
    stages = rollout.definition.stages
    if number > len(stages):
        return "The rollout is complete."
    if number == len(stages):
        return "The devices that were held back are offered the model."
    stage = stages[number]
    group = f" of those tagged {stage.group}" if stage.group else ""
    return f"Stage {number + 1} of {len(stages)} begins, with {100 * stage.share:.4g} % of the devices{group}."


def command_changes(
    command: Command, rollout: Rollout, assignments: Mapping[str, Assignment], by: str, now: StepTime
) -> StepChanges:
    """Returns the changes that a command makes.

    Raises:
        RequestError: the rollout's state does not allow it.
    """
    state = state_after(command, rollout.state)
    changes = StepChanges(replace(rollout, state=state, sentence=f"{by}: {command}."))
    if command is Command.PROMOTE:
        changes.promote(by, f"{by} said so.")
        return changes
    details: dict[str, object] = {"stage": rollout.stage, "state_before": rollout.state.value, "state": state.value}
    updates: dict[str, object] = {}
    if command is Command.APPROVE:
        updates = {"approved_by": by, "sentence": f"Approved by {by}; it can be started."}
    elif command is Command.START:
        updates = {"started_s": now.service_s}
    elif command is Command.PAUSE:
        updates = {"paused_s": now.service_s}
    elif command is Command.RESUME:
        paused_s = now.service_s - (rollout.paused_s if rollout.paused_s is not None else now.service_s)
        updates = {"paused_s": None, "lost_s": rollout.lost_s + paused_s, "patience_from_s": now.service_s}
    elif command is Command.ABORT:
        updates = {"phase": Phase.NONE, "unsettled": rollout.state in BEGUN}
    elif command is Command.ROLLBACK:
        updates = {"phase": Phase.NONE, "unsettled": False, "since_s": now.service_s}
    elif command is Command.RETRY:
        changes.assigned = _retried(rollout, assignments)
        count = len(changes.assigned)
        details["devices"] = count
        updates = {
            "attempt": rollout.attempt + 1,
            "patience_from_s": now.service_s,
            # Time that the phase lost before is not counted again.
            "paused_s": now.service_s if rollout.paused_s is not None else None,
            "lost_s": 0.0,
            "sentence": f"{by} has {counted(count, 'device')} try again.",
        }
        if count and rollout.phase in _STAGE_BEGAN:
            updates |= {"phase": Phase.INSTALLING, "since_s": now.service_s}
    changes.rollout = replace(changes.rollout, **updates)
    changes.note(command, by, **details)
    return changes


def _retried(rollout: Rollout, assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Returns the new assignments of the devices that try again, in the order of their first offers."""
    again = sorted(
        (each for each in assignments.values() if each.treated and each.state in _RETRIED), key=lambda each: each.turn
    )
    return {
        each.device: replace(
            each,
            state=DeviceState.WAITING,
            stage=rollout.stage if rollout.phase in _STAGE_BEGAN else each.stage,  # it takes them along when it begins
            # Chance did not put a device that failed in an earlier stage into this one, so it is not compared.
            reachable=each.reachable and each.stage == rollout.stage,
            turn=turn,
            reason="",
        )
        for turn, each in enumerate(again)
    }
