"""Boards' files of /proc and /sys, as their layouts are: built from one text file for each board, see `data/boards`.

One line is one file: `path = content`, with \\n and \\t in the content, or `path !EAGAIN` for one whose driver has no
value now, which is a pipe that is held open, and says exactly that.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "data" / "boards"

BOARDS = sorted(path.stem for path in _FOLDER.glob("*.txt"))


@contextmanager
def board(name: str, root: Path) -> Iterator[Path]:
    """Builds a board under an empty or missing folder; `say` changes its files."""
    with built((_FOLDER / f"{name}.txt").read_text(), name, root):
        yield root


@contextmanager
def built(text: str, name: str, root: Path) -> Iterator[Path]:
    """The same from its text."""
    with ExitStack() as opened:
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            path, equals, content = line.partition(" =")
            if equals:
                say(root, path, content.strip().replace("\\n", "\n").replace("\\t", "\t"))
            else:
                path, _, fault = line.partition(" !")
                assert fault == "EAGAIN", f"{name}: {line}"
                opened.callback(os.close, _silent(root / path))
        yield root


def say(root: Path, path: str, content: str) -> None:
    """Replaces the content of a file."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content + "\n")


def _silent(file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(file)
    return os.open(file, os.O_RDWR | os.O_NONBLOCK)


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
    with board("raspberry-pi-5", root):
        found = HotBoard(root)
        found.is_at(45.0)
        yield found
