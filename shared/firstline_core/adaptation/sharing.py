"""Which requests are the share that gets the next variant: as many as it says, evenly, without a draw."""

from __future__ import annotations


class Sharing:
    """One ladder's (what a share is short of a whole request is carried over to the next)."""

    def __init__(self) -> None:
        self._owed = 0.0

    def takes(self, share: float) -> bool:
        """Whether this request is of it; `share` is from 0 to 1."""
        self._owed += share
        if self._owed < 1:
            return False
        self._owed -= 1
        return True
