"""Small kernel files, read under a root that tests replace. Every failure is `Absent` with the reason.

The content comes from a driver: a file may be empty, malformed, or gone since its folder was listed, and reading may
fail with any error (`EIO`, `EAGAIN` of a rail that is switched off). None of these raises an exception.
"""

from __future__ import annotations

import errno
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from firstline_core.hardware.readings import Absent, Measured

FileReading: TypeAlias = Measured | Absent
"""The reading of a file, which is never modelled."""

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
        root: where they begin; "/" on the device itself. Paths are relative to it, and are shown with a "/".

    Attributes:
        reading: the file that is being read, or ""; if a driver hangs, this names its file.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.reading = ""

    def names(self, folder: str, pattern: str) -> list[str]:
        """Returns the paths of a folder's entries that match a pattern, sorted by the numbers in them.

        Args:
            folder: relative to the root.
            pattern: shell pattern of a name.
        """
        try:
            found = [entry.name for entry in (self.root / folder).iterdir() if fnmatchcase(entry.name, pattern)]
        except (OSError, ValueError):
            return []
        return [f"{folder}/{name}" for name in sorted(found, key=_by_number)[:_ENTRIES]]

    def has(self, path: str) -> bool:
        """Whether the file or folder exists."""
        try:
            return (self.root / path).exists()
        except (OSError, ValueError):
            return False

    def text(self, path: str, limit_bytes: int = _FILE_BYTES) -> str | Absent:
        """Returns the text of a file, stripped.

        Args:
            path: relative to the root.
            limit_bytes: most bytes that are read.
        """
        self.reading = path
        try:
            # Non-blocking: a pipe or other special file may never have content.
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
        content = b"".join(pieces).rstrip(b"\0")  # strings in the device tree end with a zero
        try:
            return content.decode("utf-8").strip()
        except UnicodeDecodeError:
            return Absent(f"/{path}: holds no text.")

    def word(self, path: str, otherwise: str = "", limit: int = _NAME_CHARACTERS) -> str:
        """Returns a name from a file, fit for display and for labels; `otherwise` if there is none."""
        found = self.text(path)
        return printable_name(found, limit) or otherwise if isinstance(found, str) else otherwise

    def number(
        self, path: str, scale: float = 1.0, *, low: float = float("-inf"), high: float = float("inf")
    ) -> FileReading:
        """Returns the whole number in a file, in the wanted unit.

        Args:
            path: relative to the root.
            scale: the file's unit over the wanted one: 0.001 for millidegrees as degrees.
            low: smallest plausible value, in the wanted unit.
            high: largest plausible value.
        """
        found = self.text(path)
        if isinstance(found, Absent):
            return found
        return parse_number(found, path, scale, low=low, high=high)


def parse_number(
    text: str, path: str, scale: float = 1.0, *, low: float = float("-inf"), high: float = float("inf")
) -> FileReading:
    """Returns the number in text that was read from a file; see `Tree.number`."""
    if not text:
        return Absent(f"/{path}: is empty.")
    if _WHOLE.fullmatch(text) is None:
        return Absent(f"/{path}: says {text[:_SHOWN_CHARACTERS]!a}, which is no whole number.")
    # 49300 / 1000 is 49.3, and 49300 * 0.001 is not quite.
    value = int(text) * scale if scale >= 1 else int(text) / round(1 / scale)
    if not low <= value <= high:
        return Absent(f"/{path}: says {text}, which cannot be.")
    return Measured(value, f"/{path}")


def printable_name(text: str, limit: int = _NAME_CHARACTERS) -> str:
    """Returns the text as a name: printable ASCII, and short."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text.strip())[:limit].strip()


def add_reading(found: dict[str, FileReading], name: str, reading: FileReading, limit: int = _ENTRIES) -> None:
    """Adds a reading under its name, with a number if the name is taken; beyond the limit readings are dropped.

    Many more are kept than are shown (`snapshot.limited`), because the highest of many may be the last.
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
