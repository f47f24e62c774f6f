"""The changes that a person's command makes in a rollout; pure. Devices hear of it by the engine's next steps."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from firstline_core.telemetry.wording import counted
from firstline_gateway.rollouts.changes import Now, Step, promote
from firstline_gateway.rollouts.definition import Assignment, DeviceState, Phase, Rollout
from firstline_gateway.rollouts.states import Command, RolloutState, after

_TRIED_AGAIN = frozenset({DeviceState.FAILED, DeviceState.SILENT, DeviceState.WITHDRAWN})


def command_step(command: Command, rollout: Rollout, held: Mapping[str, Assignment], by: str, now: Now) -> Step:
    """The step that a command makes.

    Raises:
        RequestError: the rollout is not in a state for it.
    """
    state = after(command, rollout.state)
    made = Step(replace(rollout, state=state, sentence=f"{by}: {command}."))
    details = {"stage": rollout.stage, "state_before": rollout.state.value, "state": state.value}
    if command is Command.PROMOTE:
        promote(made, by, f"{by} said so.")
        return made
    if command is Command.APPROVE:
        made.rollout = replace(made.rollout, approved_by=by, sentence=f"Approved by {by}; it can be started.")
    elif command is Command.START:
        made.rollout = replace(made.rollout, started_s=now.service_s)
    elif command is Command.PAUSE:
        made.rollout = replace(made.rollout, paused_s=now.service_s)
    elif command is Command.RESUME:
        paused_s = now.service_s - (rollout.paused_s if rollout.paused_s is not None else now.service_s)
        made.rollout = replace(made.rollout, paused_s=None, lost_s=rollout.lost_s + paused_s, patience_s=now.service_s)
    elif command is Command.ABORT:
        made.rollout = replace(made.rollout, phase=Phase.NONE, unsettled=rollout.state in _BEGUN)
    elif command is Command.ROLLBACK:
        made.rollout = replace(made.rollout, phase=Phase.NONE, unsettled=False, since_s=now.service_s)
    elif command is Command.RETRY:
        again = [each for each in held.values() if each.treated and each.state in _TRIED_AGAIN]
        made.assigned = {
            each.device: replace(
                each,
                state=DeviceState.WAITING,
                stage=rollout.stage,
                # Whoever failed in an earlier stage is none of those whom chance put into this one.
                there=each.there and each.stage == rollout.stage,
                place=place,
                reason="",
            )
            for place, each in enumerate(sorted(again, key=lambda each: each.place))
        }
        details["devices"] = len(again)
        made.rollout = replace(
            made.rollout,
            attempt=rollout.attempt + 1,
            phase=Phase.INSTALLING if again else rollout.phase,
            since_s=now.service_s if again else rollout.since_s,
            patience_s=now.service_s,
            paused_s=now.service_s if rollout.paused_s is not None else None,  # what was lost before is not lost again
            lost_s=0.0,
            sentence=f"{by} has {counted(len(again), 'device')} try again.",
        )
    made.notes.append((f"rollout.{command}", by, details))
    return made


_BEGUN = frozenset({RolloutState.RUNNING, RolloutState.PAUSED})
