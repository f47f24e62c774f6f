"""A rollout's commands lead along its states, and a refusal says what can be done instead."""

from __future__ import annotations

from itertools import product

import pytest

from firstline_core.errors import RequestError
from firstline_gateway.rollouts.states import FOLLOWERS, LIVE, Command, RolloutState, after


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
