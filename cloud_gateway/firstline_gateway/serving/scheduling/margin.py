"""The time that admission keeps free for what no prediction knows of.

How long batches take is learned from those that ran (`batch_times.py`). What that leaves out (other work on the
machine, the event loop, requests larger than they seem) is learned here as one number: by how much answers came later
than was foreseen, of 100 the 99th.

Half of the room is kept free in any case: a machine that becomes twice as slow from one moment to the next then makes
few of those late who wait already, and as long as anybody waits it has work all the same. Three quarters are the most:
longer pauses cannot be provided for, only counted, and a machine that has them would stand idle in between.
"""

from __future__ import annotations

from firstline_core.routing.quantiles import DecayedQuantiles

_QUANTILE = 0.99
_HALF_LIFE_COUNT, _HALF_LIFE_S = 200.0, 20.0
_LEAST_SHARE, _MOST_SHARE = 0.5, 0.75


class Margin:
    """Learned from answers, all models together."""

    def __init__(self) -> None:
        self._late_s = DecayedQuantiles(_HALF_LIFE_COUNT, _HALF_LIFE_S)

    def learn(self, foreseen_s: float, now_s: float) -> None:
        """An answer came now that was foreseen for then; one that came early was on time."""
        self._late_s.add(max(0.0, now_s - foreseen_s), now_s)

    @property
    def seconds(self) -> float:
        """What predictions are usually late by."""
        return self._late_s.quantile(_QUANTILE) or 0.0

    def usable_s(self, room_s: float) -> float:
        """What is left of some room, in seconds, once the margin is kept free; less than none stays what it is."""
        least_s, most_s = _LEAST_SHARE * max(0.0, room_s), _MOST_SHARE * max(0.0, room_s)
        return room_s - min(max(self.seconds, least_s), most_s)
