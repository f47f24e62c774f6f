"""The kinds of updates, the states of one update on one device, and the allowed transitions.

    OFFERED -> DOWNLOADING -> VERIFIED -> STAGED -> TRIAL -> COMMITTED
       |            |            |          |         |          |
       +------------+------------+----------+         +----------+--> ROLLED_BACK
       `--> REJECTED, FAILED, CANCELLED, EXPIRED

Only a trial changes what answers requests, so a rollback is possible only from there on. A rejected or failed update is
not retried automatically: a newer desired state starts a new update.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class UpdateKind(StrEnum):
    """The content that an update or a rollout brings to devices."""

    MODEL = "model"
    CONFIGURATION = "configuration"


class UpdateState(StrEnum):
    """The state of an update."""

    OFFERED = "offered"
    """The device received it."""
    DOWNLOADING = "downloading"
    """Signed metadata names it and this device meets its needs; its files are being fetched."""
    VERIFIED = "verified"
    """Every file is here, and is what was signed."""
    STAGED = "staged"
    """It is in the other slot and waits for its window."""
    TRIAL = "trial"
    """It is being tried; each restart uses up one try, and without tries left the device rolls back."""
    COMMITTED = "committed"
    """It answers requests permanently."""
    ROLLED_BACK = "rolled_back"
    """It was tried, or ran, and the previous bundle runs again."""
    FAILED = "failed"
    """It could not be fetched or stored: no room, no connection, a disk error."""
    REJECTED = "rejected"
    """It must not or cannot run here: its signature, its metadata, its requirements, its test before the trial."""
    CANCELLED = "cancelled"
    """The desired state has changed since."""
    EXPIRED = "expired"
    """It expired before it was tried."""


_S = UpdateState
_NOT_TRIED = frozenset({_S.REJECTED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})

_FOLLOWERS: Mapping[UpdateState, frozenset[UpdateState]] = MappingProxyType(
    {
        _S.OFFERED: frozenset({_S.DOWNLOADING}) | _NOT_TRIED,
        _S.DOWNLOADING: frozenset({_S.VERIFIED}) | _NOT_TRIED,
        _S.VERIFIED: frozenset({_S.STAGED}) | _NOT_TRIED,
        _S.STAGED: frozenset({_S.TRIAL}) | _NOT_TRIED,
        _S.TRIAL: frozenset({_S.COMMITTED, _S.ROLLED_BACK}),
        _S.COMMITTED: frozenset({_S.ROLLED_BACK}),
    }
)
"""The allowed transitions; all other states are final."""

ENDED = frozenset({_S.COMMITTED, _S.ROLLED_BACK, _S.FAILED, _S.REJECTED, _S.CANCELLED, _S.EXPIRED})
"""Final states."""

UNSUCCESSFUL = frozenset({_S.ROLLED_BACK, _S.FAILED, _S.REJECTED})
"""The states that a rollout counts against a model; cancelled and expired updates do not count."""


def may_follow(before: UpdateState, after: UpdateState) -> bool:
    """Returns whether an update may change from one state to another."""
    return after in _FOLLOWERS.get(before, ())
