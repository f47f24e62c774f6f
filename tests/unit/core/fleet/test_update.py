"""The states of an update and their transitions."""

import pytest

from firstline_core.fleet.update import ENDED, UNSUCCESSFUL, UpdateState, may_follow


def _followers(before: UpdateState) -> set[UpdateState]:
    return {after for after in UpdateState if may_follow(before, after)}


def _reached(start: UpdateState) -> set[UpdateState]:
    found, ahead = {start}, [start]
    while ahead:
        for state in _followers(ahead.pop()) - found:
            found.add(state)
            ahead.append(state)
    return found


@pytest.mark.parametrize("state", UpdateState)
def test_every_state_is_reachable_and_leads_to_an_end_and_not_back(state: UpdateState) -> None:
    assert state in _reached(UpdateState.OFFERED)
    assert _reached(state) & ENDED
    assert all(state not in _reached(after) for after in _followers(state))


def test_only_tried_updates_are_rolled_back() -> None:
    befores = {before for before in UpdateState if may_follow(before, UpdateState.ROLLED_BACK)}
    assert befores == {UpdateState.TRIAL, UpdateState.COMMITTED}


def test_a_trial_is_committed_or_rolled_back() -> None:
    assert _followers(UpdateState.TRIAL) == {UpdateState.COMMITTED, UpdateState.ROLLED_BACK}


def test_unsuccessful_updates_have_ended() -> None:
    assert UNSUCCESSFUL < ENDED
    assert UpdateState.CANCELLED not in UNSUCCESSFUL and UpdateState.EXPIRED not in UNSUCCESSFUL
