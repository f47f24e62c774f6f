"""A rollout's commands lead along its states, and a refusal says what can be done instead."""

from __future__ import annotations

from itertools import product

import pytest

from firstline_core.errors import RequestError
from firstline_gateway.rollouts.definition import Definition, Rollout
from firstline_gateway.rollouts.plan import consequences
from firstline_gateway.rollouts.stages import Stage
from firstline_gateway.rollouts.states import FOLLOWERS, LIVE, Command, RolloutState, after, open_in


@pytest.mark.parametrize(("command", "state"), list(product(Command, RolloutState)))
def test_a_command_leads_to_a_follower_or_is_refused(command: Command, state: RolloutState) -> None:
    try:
        found = after(command, state)
    except RequestError as refused:
        assert f"cannot {command}" in refused.message
        return
    assert found is state or found in FOLLOWERS[state]


def test_whatever_is_live_can_be_ended_by_a_person_or_ends_by_itself() -> None:
    for state in LIVE - {RolloutState.ROLLING_BACK}:
        assert after(Command.ABORT, state) is RolloutState.ABORTED
        assert after(Command.ROLLBACK, state) is RolloutState.ROLLING_BACK
    assert FOLLOWERS[RolloutState.ROLLING_BACK] == {RolloutState.ROLLED_BACK}


def test_a_refusal_names_what_can_be_done() -> None:
    with pytest.raises(RequestError, match="it can be: rollback"):
        after(Command.PAUSE, RolloutState.COMPLETED)
    with pytest.raises(RequestError, match="nothing more can be done"):
        after(Command.ABORT, RolloutState.ROLLED_BACK)


@pytest.mark.parametrize("state", RolloutState)
def test_what_each_command_would_do_is_said_before_and_nothing_of_those_that_are_refused(state: RolloutState) -> None:
    stages = (Stage(0.1, group="site=berlin"), Stage(1.0))
    definition = Definition("digits", 2, "0" * 64, stages)
    counts = {"waiting": 1, "offered": 2, "under_way": 3, "away": 4, "silent": 5, "done": 6, "failed": 7}
    said = consequences(Rollout("r", definition, state, "ops", 0.0, seed=0, stage=1), counts)
    assert set(said) == set(open_in(state))
    numbers = {
        "pause": "waiting, told nothing: 1; under way, going on: 14",
        "retry": "12 devices",
        "rollback": "again on 6 devices;",
    }
    for command, words in numbers.items():
        assert words in said.get(command, words)
    if state is RolloutState.APPROVED:
        assert said["start"].startswith("Stage 1 of 2 begins, with 10 % of the devices of those tagged site=berlin.")


@pytest.mark.parametrize(("stage", "follows"), [(0, "Stage 2 of 2 begins"), (1, "held back"), (2, "is complete")])
def test_a_promotion_says_what_follows(stage: int, follows: str) -> None:
    definition = Definition("digits", 2, "0" * 64, (Stage(0.1), Stage(1.0)))
    running = Rollout("r", definition, RolloutState.RUNNING, "ops", 0.0, seed=0, stage=stage)
    assert follows in consequences(running, {})["promote"]
