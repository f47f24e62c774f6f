"""The states of an update: each has an end, and nothing that was refused comes back by itself."""

from __future__ import annotations

import pytest

from firstline_core.fleet.update import ENDED, FOLLOWERS, UNSUCCESSFUL, UpdateState, may_follow


def _reached(start: UpdateState) -> set[UpdateState]:
    found, ahead = {start}, [start]
    while ahead:
        for state in FOLLOWERS[ahead.pop()] - found:
            found.add(state)
            ahead.append(state)
    return found


@pytest.mark.parametrize("state", UpdateState)
def test_every_state_is_reached_and_leads_to_an_end(state: UpdateState) -> None:
    assert state in _reached(UpdateState.OFFERED)
    assert _reached(state) & ENDED


@pytest.mark.parametrize("state", UpdateState)
def test_no_state_leads_back_to_itself(state: UpdateState) -> None:
    assert all(state not in _reached(after) for after in FOLLOWERS[state])


def test_only_what_was_tried_is_rolled_back() -> None:
    befores = {before for before in UpdateState if may_follow(before, UpdateState.ROLLED_BACK)}
    assert befores == {UpdateState.TRIAL, UpdateState.COMMITTED}


def test_what_is_being_tried_is_kept_or_undone_and_nothing_else() -> None:
    assert FOLLOWERS[UpdateState.TRIAL] == {UpdateState.COMMITTED, UpdateState.ROLLED_BACK}


def test_unsuccessful_updates_have_ended() -> None:
    assert UNSUCCESSFUL < ENDED
    assert UpdateState.CANCELLED not in UNSUCCESSFUL and UpdateState.EXPIRED not in UNSUCCESSFUL
