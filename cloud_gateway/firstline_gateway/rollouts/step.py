"""One step of a rollout: computes the changes from its state, its devices' reports and the time. Pure.

installing      the stage's devices are offered the model, at its pace, and have until its patience ends
observing       both groups are looked at, and the stage is judged
going back      after an abort: those under way stop; after a rollback those that are done go back, too
"""

from __future__ import annotations

from collections.abc import Mapping

from firstline_gateway.rollouts.changes import Now, Step, View
from firstline_gateway.rollouts.definition import Assignment, Phase, Rollout
from firstline_gateway.rollouts.device_progress import moved
from firstline_gateway.rollouts.evaluation import look
from firstline_gateway.rollouts.stage_steps import begin, go_back, install
from firstline_gateway.rollouts.states import RolloutState


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
            begin(made, devices, view, now)
        elif rollout.phase is Phase.INSTALLING:
            install(made, devices, view, now)
        elif now.service_s >= rollout.look_due_s:
            look(made, devices, view, now)
    elif rollout.state is RolloutState.ROLLING_BACK:
        go_back(made, devices, view, all_of_them=True)
    elif rollout.unsettled:
        go_back(made, devices, view, all_of_them=False)
    return made
