"""The time that admission keeps free for errors of the predictions.

The times of batches are learned from those that ran (`executors/dispatch/forecast.py`). Other delays (other work on the
machine, the event loop, requests larger than they seem) are learned here as one number: the 99th percentile of the
delay between an answer and its prediction.

At least half of the room is kept free. Then a machine that suddenly becomes twice as slow makes few of the waiting
requests late; and it never idles, because requests wait. At most three quarters are kept free: longer pauses cannot be
planned for, only counted, and the machine would idle between them.
"""

from __future__ import annotations

from firstline_core.routing.quantiles import DecayedQuantiles

_QUANTILE = 0.99
_HALF_LIFE_COUNT, _HALF_LIFE_S = 200.0, 20.0
_LEAST_SHARE, _MOST_SHARE = 0.5, 0.75


class Margin:
    """The usual delay of predictions, learned from the answers of all models together."""

    def __init__(self) -> None:
        self._late_s = DecayedQuantiles(_HALF_LIFE_COUNT, _HALF_LIFE_S)

    def learn(self, foreseen_s: float, now_s: float) -> None:
        """Learns from an answer that came now and was predicted for `foreseen_s`; an early one counts as in time."""
        self._late_s.add(max(0.0, now_s - foreseen_s), now_s)

    @property
    def seconds(self) -> float:
        """The usual delay of predictions."""
        return self._late_s.quantile(_QUANTILE) or 0.0

    def usable_s(self, room_s: float) -> float:
        """Returns the seconds of a room that are left after the margin; a negative room is returned as it is."""
        least_s, most_s = _LEAST_SHARE * max(0.0, room_s), _MOST_SHARE * max(0.0, room_s)
        return room_s - min(max(self.seconds, least_s), most_s)
