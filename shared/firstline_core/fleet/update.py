"""The states of one update on one device, and which may follow which.

    OFFERED -> DOWNLOADING -> VERIFIED -> STAGED -> TRIAL -> COMMITTED
       |            |            |          |         |          |
       +------------+------------+----------+         +----------+--> ROLLED_BACK
       `--> REJECTED, FAILED, CANCELLED, EXPIRED

Only a trial puts anything before requests, so only from there on is there something to go back to. Nothing that was
refused or failed is tried again by itself: a newer word of the fleet begins an update of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class UpdateState(StrEnum):
    """How far an update came."""

    OFFERED = "offered"
    """The device was told of it."""
    DOWNLOADING = "downloading"
    """Signed metadata names it and this device meets its needs; its files are being fetched."""
    VERIFIED = "verified"
    """Every file is here, and is what was signed."""
    STAGED = "staged"
    """It lies in the other slot and waits for its window."""
    TRIAL = "trial"
    """It is being tried; a restart costs a try, and without any left the device goes back by itself."""
    COMMITTED = "committed"
    """It answers requests for good."""
    ROLLED_BACK = "rolled_back"
    """It was tried, or ran, and what ran before it runs again."""
    FAILED = "failed"
    """It could not be brought here: no room, no bytes, a disk that refuses."""
    REJECTED = "rejected"
    """It must not, or cannot, run here: its signature, its metadata, its needs."""
    CANCELLED = "cancelled"
    """The fleet wants something else by now."""
    EXPIRED = "expired"
    """Its time was over before it was tried."""


_S = UpdateState
_NOT_TRIED = frozenset({_S.REJECTED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})

FOLLOWERS: Mapping[UpdateState, frozenset[UpdateState]] = MappingProxyType(
    {
        _S.OFFERED: frozenset({_S.DOWNLOADING}) | _NOT_TRIED,
        _S.DOWNLOADING: frozenset({_S.VERIFIED}) | _NOT_TRIED,
        _S.VERIFIED: frozenset({_S.STAGED}) | _NOT_TRIED,
        _S.STAGED: frozenset({_S.TRIAL}) | _NOT_TRIED,
        _S.TRIAL: frozenset({_S.COMMITTED, _S.ROLLED_BACK}),
        _S.COMMITTED: frozenset({_S.ROLLED_BACK}),
        _S.ROLLED_BACK: frozenset(),
        _S.FAILED: frozenset(),
        _S.REJECTED: frozenset(),
        _S.CANCELLED: frozenset(),
        _S.EXPIRED: frozenset(),
    }
)
"""Which states may follow which."""

ENDED = frozenset({_S.COMMITTED, _S.ROLLED_BACK, _S.FAILED, _S.REJECTED, _S.CANCELLED, _S.EXPIRED})
"""Nothing more happens by itself."""

UNSUCCESSFUL = frozenset({_S.ROLLED_BACK, _S.FAILED, _S.REJECTED})
"""What a rollout counts against a model; cancelled and expired updates say nothing of it."""


def may_follow(before: UpdateState, after: UpdateState) -> bool:
    """Whether an update in the one state may next be in the other."""
    return after in FOLLOWERS[before]
