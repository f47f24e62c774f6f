"""A board whose recorded files of /proc and /sys change as it grows hot, cools down, and runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.boards import board, say

NAME = "raspberry-pi-5"
CAPPED_C = 80.0
"""From where the firmware lowers the clock: raspberrypi.com/documentation/computers/os.html, "get_throttled"."""
_HOT = ("sys/class/thermal/thermal_zone0/temp", "sys/class/hwmon/hwmon0/temp1_input")
_FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
_CAPPED_NOW, _CAPPED_ONCE = 0x2, 0x20000


class HotBoard:
    """The board's files.

    Args:
        root: folder that replaces `/`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._once = 0

    def is_at(self, celsius: float) -> None:
        """Sets the temperature of both sensors of the chip, and the firmware's throttling bits."""
        now = _CAPPED_NOW if celsius >= CAPPED_C else 0
        self._once |= _CAPPED_ONCE if now else 0
        for path in _HOT:
            self._say(path, str(int(celsius * 1000)))
        self._say(_FIRMWARE, f"{self._once | now:x}")

    def has_left(self, mib: int) -> None:
        self._say("proc/meminfo", f"MemTotal:        8255584 kB\nMemAvailable:    {mib * 1024} kB")

    def _say(self, path: str, content: str) -> None:
        """Replaces a file atomically, so that no reading sees half of it."""
        say(self.root, f"{path}.new", content)
        (self.root / f"{path}.new").replace(self.root / path)


@contextmanager
def hot_board(root: Path) -> Iterator[HotBoard]:
    """A Raspberry Pi 5 as it was recorded, at 45 degrees."""
    with board(NAME, root):
        found = HotBoard(root)
        found.is_at(45.0)
        yield found
