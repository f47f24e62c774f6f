"""How far down its ladder heat asks a device to stand, as a number that need not be whole.

At its limit a device has too little for the best variant and more than enough for the next one. Stepping between them
leaves it too cool for half of the time; so a share of the requests is given the better one, such that the hottest part
settles just below the limit: a proportional-integral controller (Astrom and Murray, Feedback Systems, chapter 11),
whose output is the depth: 0 is the best rung, 1 the next, 0.3 the next for three requests of ten.

No model of the board is asked for. The gains are of a kind for all: they hold the simulated board of
`bench/hardware/thermal.py` below its limit, and others three times as slow and as quick.
"""

from __future__ import annotations

from firstline_core.adaptation.guards import Limits, ahead_c

_RUNGS_PER_C = 0.1
_RUNGS_PER_C_S = 0.01
_URGENT_SHARE = 1 / 3  # of the margin: whole degrees and seconds between readings leave no finer step than the last
_LONGEST_S = 10.0  # that one reading counts for, however long none came


class Thermostat:
    """One ladder's.

    Args:
        last: its last rung.
        limits: of heat; it settles at the limit less the margin.

    Attributes:
        depth: from 0 to `last`.
    """

    def __init__(self, last: int, limits: Limits) -> None:
        self._last = last
        self._limits = limits
        self._integral = 0.0
        self._read_s: float | None = None
        self.depth = 0.0

    def look(self, at_s: float, hottest_c: float | None, rise_c_per_s: float) -> float:
        """Takes a reading; the depth from now on.

        Args:
            at_s: never goes back.
            hottest_c: None where nobody measures it: what was asked for stays, which is nothing where nobody ever did.
            rise_c_per_s: its trend.
        """
        since_s = 0.0 if self._read_s is None else min(at_s - self._read_s, _LONGEST_S)
        self._read_s = at_s
        if hottest_c is None:
            return self.depth
        over_c = ahead_c(hottest_c, rise_c_per_s, self._limits) - self._limits.settles_c
        # Within bounds, so that a long heat is not paid for by an equally long time at the cheapest.
        self._integral = self._within(self._integral + _RUNGS_PER_C_S * over_c * since_s)
        self.depth = self._within(self._integral + _RUNGS_PER_C * over_c)
        if hottest_c >= self._limits.heat_c - _URGENT_SHARE * self._limits.heat_margin_c:
            self.depth = float(self._last)
        return self.depth

    def _within(self, depth: float) -> float:
        return min(float(self._last), max(0.0, depth))
