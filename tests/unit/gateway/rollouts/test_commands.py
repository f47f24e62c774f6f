"""The commands of a rollout: allowed states, refusals, and consequences."""

from itertools import product

import pytest

from firstline_core.errors import RequestError
from firstline_gateway.rollouts.commands import Command, allowed_commands, consequences, state_after
from firstline_gateway.rollouts.rollout import LIVE, Definition, Rollout, RolloutState, Stage

S = RolloutState
FOLLOWERS = {
    S.DRAFT: {S.APPROVED, S.ABORTED},
    S.APPROVED: {S.RUNNING, S.ABORTED},
    S.RUNNING: {S.PAUSED, S.COMPLETED, S.ABORTED, S.ROLLING_BACK},
    S.PAUSED: {S.RUNNING, S.COMPLETED, S.ABORTED, S.ROLLING_BACK},
    S.COMPLETED: {S.ROLLING_BACK},
    S.ABORTED: {S.ROLLING_BACK},
    S.ROLLING_BACK: {S.ROLLED_BACK},
    S.ROLLED_BACK: set[RolloutState](),
}


def test_a_command_leads_to_a_state_that_may_follow_or_is_refused() -> None:
    for command, state in product(Command, RolloutState):
        try:
            following = state_after(command, state)
        except RequestError as refused:
            assert f"does not allow {command}; " in refused.message
        else:
            assert following is state or following in FOLLOWERS[state], (command, state)


def test_an_operator_can_end_each_live_rollout() -> None:
    for state in LIVE - {RolloutState.ROLLING_BACK}:
        assert state_after(Command.ABORT, state) is RolloutState.ABORTED
        assert state_after(Command.ROLLBACK, state) is RolloutState.ROLLING_BACK


def test_a_refusal_lists_the_allowed_commands() -> None:
    with pytest.raises(RequestError, match="it allows: rollback"):
        state_after(Command.PAUSE, RolloutState.COMPLETED)
    with pytest.raises(RequestError, match="nothing more can be done"):
        state_after(Command.ABORT, RolloutState.ROLLED_BACK)


@pytest.mark.parametrize("state", RolloutState)
def test_consequences_describe_exactly_the_allowed_commands(state: RolloutState) -> None:
    stages = (Stage(0.1, group="site=berlin"), Stage(1.0))
    definition = Definition("digits", 2, "0" * 64, stages)
    counts = {"waiting": 1, "offered": 2, "under_way": 3, "away": 4, "silent": 5, "done": 6, "failed": 7}
    effects = consequences(Rollout("r", definition, state, "ops", 0.0, seed=0, stage=1), counts)
    assert set(effects) == set(allowed_commands(state))
    numbers = {"pause": "waiting: 1; under way, going on: 14", "retry": "12 devices", "rollback": "again on 6 devices;"}
    for command, words in numbers.items():
        assert words in effects.get(command, words)
    if state is RolloutState.APPROVED:
        assert effects["start"].startswith("Stage 1 of 2 begins, with 10 % of the devices of those tagged site=berlin.")


@pytest.mark.parametrize(("stage", "follows"), [(0, "Stage 2 of 2 begins"), (1, "held back"), (2, "is complete")])
def test_the_consequence_of_a_promotion_is_the_next_stage(stage: int, follows: str) -> None:
    definition = Definition("digits", 2, "0" * 64, (Stage(0.1), Stage(1.0)))
    running = Rollout("r", definition, RolloutState.RUNNING, "ops", 0.0, seed=0, stage=stage)
    assert follows in consequences(running, {})["promote"]
