"""The states of a rollout, which may follow which, and what a person may do in each.

    DRAFT -> APPROVED -> RUNNING <-> PAUSED
                            |           |
             COMPLETED <----+-----------+---> ABORTED
                 |                      |        |
                 +------> ROLLING_BACK <+--------+
                               `--> ROLLED_BACK

`abort` begins nothing more: devices under way stop, those that are done stay. `rollback` is an abort after which those
that are done go back to what they ran before; that is what a verdict to abort does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from firstline_core.errors import RequestError


class RolloutState(StrEnum):
    """How far a rollout came."""

    DRAFT = "draft"
    APPROVED = "approved"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"


class Command(StrEnum):
    """The commands for a rollout."""

    APPROVE = "approve"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    RETRY = "retry"
    ABORT = "abort"
    ROLLBACK = "rollback"


_S, _C = RolloutState, Command

FOLLOWERS: Mapping[RolloutState, frozenset[RolloutState]] = MappingProxyType(
    {
        _S.DRAFT: frozenset({_S.APPROVED, _S.ABORTED}),
        _S.APPROVED: frozenset({_S.RUNNING, _S.ABORTED}),
        _S.RUNNING: frozenset({_S.PAUSED, _S.COMPLETED, _S.ABORTED, _S.ROLLING_BACK}),
        _S.PAUSED: frozenset({_S.RUNNING, _S.COMPLETED, _S.ABORTED, _S.ROLLING_BACK}),
        _S.COMPLETED: frozenset({_S.ROLLING_BACK}),
        _S.ABORTED: frozenset({_S.ROLLING_BACK}),
        _S.ROLLING_BACK: frozenset({_S.ROLLED_BACK}),
        _S.ROLLED_BACK: frozenset(),
    }
)
"""Which states may follow which."""

LIVE = frozenset({_S.RUNNING, _S.PAUSED, _S.ROLLING_BACK})
"""Something may still happen to devices."""

_LEADS: Mapping[Command, Mapping[RolloutState, RolloutState]] = MappingProxyType(
    {
        _C.APPROVE: {_S.DRAFT: _S.APPROVED},
        _C.START: {_S.APPROVED: _S.RUNNING},
        _C.PAUSE: {_S.RUNNING: _S.PAUSED},
        _C.RESUME: {_S.PAUSED: _S.RUNNING},
        # The stage is taken for sound at a person's word; which stage is next, or that none is, is the engine's.
        _C.PROMOTE: {_S.RUNNING: _S.RUNNING, _S.PAUSED: _S.RUNNING},
        _C.RETRY: {_S.RUNNING: _S.RUNNING, _S.PAUSED: _S.PAUSED},
        _C.ABORT: dict.fromkeys((_S.DRAFT, _S.APPROVED, _S.RUNNING, _S.PAUSED), _S.ABORTED),
        _C.ROLLBACK: dict.fromkeys((_S.RUNNING, _S.PAUSED, _S.COMPLETED, _S.ABORTED), _S.ROLLING_BACK),
    }
)


def after(command: Command, state: RolloutState) -> RolloutState:
    """The state that a command leads to.

    Raises:
        RequestError: not from this state; the sentence says what can be done in it.
    """
    found = _LEADS[command].get(state)
    if found is None:
        offered = sorted(open_in(state))
        offer = f"it can be: {', '.join(offered)}" if offered else "nothing more can be done to it"
        raise RequestError(f"A rollout that is {state.replace('_', ' ')} cannot {command}; {offer}.")
    return found


def open_in(state: RolloutState) -> tuple[Command, ...]:
    """Returns the allowed commands in a state."""
    return tuple(each for each, leads in _LEADS.items() if state in leads)
