"""Small files of the kernel's, read under a root that tests replace. Whatever goes wrong is `Absent`, with the reason.

What such a file holds is a driver's word: it may be empty, of another kind, or gone since its folder was listed, and
reading it may fail with whatever the driver likes (`EIO`, `EAGAIN` of a rail that is switched off). None of it is worth
an exception.
"""

from __future__ import annotations

import errno
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from firstline_core.hardware.readings import Absent, Measured

Found: TypeAlias = Measured | Absent
"""What a file can give: never a modelled value."""

_FILE_BYTES = 4096  # a page, which is all that a file of sysfs can hold
_ENTRIES = 1024
_NAME_CHARACTERS = 48
_SHOWN_CHARACTERS = 40
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBERED = re.compile(r"([0-9]+)")

NO_VALUE_NOW = "the driver has no value now, as of a part that is switched off"

_REASONS = {
    errno.EACCES: "only the superuser may read it; docs/hardware.md says how to let the agent",
    errno.EPERM: "only the superuser may read it; docs/hardware.md says how to let the agent",
    errno.EAGAIN: NO_VALUE_NOW,
    errno.ENODATA: "the driver has no value, as of a channel that is switched off",
    errno.ENXIO: "the device behind it does not answer",
    errno.ENODEV: "the device behind it does not answer",
    errno.EIO: "the device behind it does not answer",
}


class Tree:
    """The kernel's files of one device.

    Args:
        root: where they begin; "/" on the device itself. Paths below are relative to it, and are told with a "/".

    Attributes:
        reading: the file that is read at this moment, "" where none is: where a driver hangs, it names it.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.reading = ""

    def names(self, folder: str, pattern: str) -> list[str]:
        """Paths of the folder's entries that fit a pattern, in the order of the numbers in them; none where it is not.

        Args:
            folder: relative to the root.
            pattern: as the shell's, of one name.
        """
        try:
            found = [entry.name for entry in (self.root / folder).iterdir() if fnmatchcase(entry.name, pattern)]
        except (OSError, ValueError):
            return []
        return [f"{folder}/{name}" for name in sorted(found, key=_by_number)[:_ENTRIES]]

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        try:
            return (self.root / path).exists()
        except (OSError, ValueError):
            return False

    def text(self, path: str, limit_bytes: int = _FILE_BYTES) -> str | Absent:
        """What a file says, without the white space around it.

        Args:
            path: relative to the root.
            limit_bytes: where reading ends.
        """
        self.reading = path
        try:
            # Without waiting: what is no file of the kernel's, such as a pipe, may never have anything to say.
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                pieces, left = [], limit_bytes
                while left > 0 and (piece := os.read(descriptor, left)):
                    pieces.append(piece)
                    left -= len(piece)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            return Absent(f"/{path}: {_why(error)}.")
        finally:
            self.reading = ""
        content = b"".join(pieces).rstrip(b"\0")  # the device tree ends its words as C does
        try:
            return content.decode("utf-8").strip()
        except UnicodeDecodeError:
            return Absent(f"/{path}: holds no text.")

    def word(self, path: str, otherwise: str = "", limit: int = _NAME_CHARACTERS) -> str:
        """A name that a file holds, fit to be shown and to be a label; `otherwise` where there is none."""
        found = self.text(path)
        return name_of(found, limit) or otherwise if isinstance(found, str) else otherwise

    def number(self, path: str, scale: float = 1.0, *, low: float = float("-inf"), high: float = float("inf")) -> Found:
        """The whole number that a file holds, in the unit that is asked for.

        Args:
            path: relative to the root.
            scale: what the file's unit is of the one asked for: 0.001 for millidegrees as degrees.
            low: below this, in the unit asked for, no sensor means what it says.
            high: above this, likewise.
        """
        found = self.text(path)
        if isinstance(found, Absent):
            return found
        return as_number(found, path, scale, low=low, high=high)


def as_number(
    text: str, path: str, scale: float = 1.0, *, low: float = float("-inf"), high: float = float("inf")
) -> Found:
    """The same of text that was read already."""
    if not text:
        return Absent(f"/{path}: is empty.")
    if _WHOLE.fullmatch(text) is None:
        return Absent(f"/{path}: says {text[:_SHOWN_CHARACTERS]!a}, which is no whole number.")
    # 49300 / 1000 is 49.3, and 49300 * 0.001 is not quite.
    value = int(text) * scale if scale >= 1 else int(text) / round(1 / scale)
    if not low <= value <= high:
        return Absent(f"/{path}: says {text}, which cannot be.")
    return Measured(value, f"/{path}")


def name_of(text: str, limit: int = _NAME_CHARACTERS) -> str:
    """Text as a name: printable ASCII, and short."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text.strip())[:limit].strip()


def placed(found: dict[str, Found], name: str, reading: Found, limit: int = _ENTRIES) -> None:
    """Adds a reading under its name, or the name with a number where another has that name; a flood is cut off.

    Far more are kept than anybody is told of (`snapshot.bounded`): the hottest of many may be the last.
    """
    if len(found) >= limit:
        return
    key, at = name, 2
    while key in found:
        key, at = f"{name} {at}", at + 1
    found[key] = reading


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in _NUMBERED.split(name)]


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return _REASONS.get(error.errno) or (os.strerror(error.errno).lower())
    return str(error)
