"""The time on a device whose clock may never have been set. Certificates are judged only by this time.

A gateway that TLS has authenticated sends its time. The newest such time, stored over restarts and advanced by the
monotonic clock, is a floor: it is certainly not earlier. The wall clock is trusted between the floor and the end of the
authorities. Below, it was never set (1970) or was set back; above, it is wrong, or the identity is worthless. In both
cases the floor is the time: an attacker who sets the clock to 2100 gains no more than with 1970, and a device with a
wrong clock recovers by itself.
"""

from __future__ import annotations

import math
from pathlib import Path

from msgspec import Struct

from firstline_core.clock import Clock
from firstline_edge.state import read_stored, store

# The file is written after the floor has risen by this much, to spare flash memory.
_SAVED_EVERY_S = 6 * 3600.0


class StoredFloor(Struct, frozen=True):
    """The floor when it was stored (wall time, seconds)."""

    floor_s: float = 0.0


class TimeFloor:
    """The floor of one device.

    Args:
        path: stores the floor.
        clock: of the device.
        least_s: a time that was signed, such as when the device's certificate begins.
        most_s: when the authorities end.
    """

    def __init__(self, path: Path, clock: Clock, *, least_s: float, most_s: float) -> None:
        self._path = path
        self._clock = clock
        self._most_s = most_s
        # Without a valid file the floor is 1970, because a damaged, higher floor could never be lowered again.
        self._saved = read_stored(path, StoredFloor, "gateway time") or StoredFloor()
        self._floor_s = max(least_s, min(self._saved.floor_s, most_s))
        self._since_s = clock.monotonic_s()

    @property
    def floor_s(self) -> float:
        """A time that has certainly passed (wall time, seconds)."""
        return self._floor_s + max(0.0, self._clock.monotonic_s() - self._since_s)

    @property
    def trusts_clock(self) -> bool:
        """Whether the wall clock may be right."""
        return self.floor_s <= self._clock.wall_s() <= self._most_s

    def now_s(self) -> float:
        """The time to judge certificates by (wall time, seconds)."""
        return self._clock.wall_s() if self.trusts_clock else self.floor_s

    def observe(self, now_s: float, until_s: float) -> None:
        """Takes up the time of an authenticated gateway.

        Args:
            now_s: its wall time.
            until_s: end of the certificate that vouches for it, which no clock may exceed.
        """
        bounded_s = min(now_s, until_s, self._most_s)
        if math.isfinite(bounded_s) and bounded_s > self.floor_s:
            self._floor_s, self._since_s = bounded_s, self._clock.monotonic_s()

    def extend(self, least_s: float, most_s: float) -> None:
        """Takes up the times of a new certificate and of its authorities."""
        self._most_s = max(self._most_s, most_s)
        self.observe(least_s, self._most_s)

    def save(self) -> None:
        """Stores the floor after it has risen by hours; if the disk refuses, a restart forgets the rise."""
        now = StoredFloor(self.floor_s)
        if now.floor_s - self._saved.floor_s >= _SAVED_EVERY_S and store(self._path, now, "gateway time"):
            self._saved = now
