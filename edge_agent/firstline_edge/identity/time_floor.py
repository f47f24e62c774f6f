"""The time on a device whose clock may never have been set. Certificates are judged by this and nothing else.

A gateway that TLS has authenticated says what time it is; the newest such time, kept over restarts and carried on by
the monotonic clock, is a floor: it is certainly not earlier. The wall clock is believed from the floor up to the end
of the authorities. Below, it was never set (1970) or was set back; above, either it is wrong or nothing of this
identity is worth anything any more. In both cases the floor is the time: who can set this device's clock gains no
more by 2100 than by 1970, and a device that was set wrong finds back by itself.
"""

from __future__ import annotations

import math
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import read_checked, with_checksum, write_whole
from firstline_core.telemetry.logs import logger

# Flash wears: the file is written anew once the floor has risen by so much.
_SAVED_EVERY_S = 6 * 3600.0

log = logger(__name__)


class TimeFloor:
    """The floor of one device.

    Args:
        path: where it is kept.
        clock: the device's.
        least_s: a time that was signed, such as when the device's certificate begins.
        most_s: when the authorities end.
    """

    def __init__(self, path: Path, clock: Clock, *, least_s: float, most_s: float) -> None:
        self._path = path
        self._clock = clock
        self._most_s = most_s
        self._saved_s = _read(path)
        self._floor_s = max(least_s, min(self._saved_s, most_s))
        self._since_s = clock.monotonic_s()

    @property
    def floor_s(self) -> float:
        """It is at least so late (wall time, seconds)."""
        return self._floor_s + max(0.0, self._clock.monotonic_s() - self._since_s)

    @property
    def believes_clock(self) -> bool:
        """Whether the wall clock may be right."""
        return self.floor_s <= self._clock.wall_s() <= self._most_s

    def now_s(self) -> float:
        """The time to judge certificates by (wall time, seconds)."""
        return self._clock.wall_s() if self.believes_clock else self.floor_s

    def heard(self, now_s: float, until_s: float) -> None:
        """Takes up what an authenticated gateway says.

        Args:
            now_s: its wall time.
            until_s: when the certificate ends that vouches for it: nobody's clock may carry us beyond.
        """
        told_s = min(now_s, until_s, self._most_s)
        if math.isfinite(told_s) and told_s > self.floor_s:
            self._floor_s, self._since_s = told_s, self._clock.monotonic_s()

    def extend(self, least_s: float, most_s: float) -> None:
        """Takes up the times of a new certificate, and of the authorities behind it."""
        self._most_s = max(self._most_s, most_s)
        self.heard(least_s, self._most_s)

    def save(self) -> None:
        """Keeps the floor, where it has risen by hours; a disk that refuses costs what a restart forgets."""
        now_s = self.floor_s
        if now_s - self._saved_s < _SAVED_EVERY_S:
            return
        try:
            write_whole(self._path, with_checksum(b"%.0f" % now_s))
        except OSError as error:
            log.warning("cannot keep the time that the gateway vouched for", error=str(error))
        else:
            self._saved_s = now_s


def _read(path: Path) -> float:
    try:
        found = float(read_checked(path))
    except (OSError, ValueError, IntegrityError):  # a floor that a disk has raised could never be lowered again
        return 0.0
    return found if math.isfinite(found) else 0.0
