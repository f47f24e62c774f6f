r"""A tree that keeps what is read of it, as the text of a board for `tests/data/boards`: one line is one file.

    path = content        with \\n and \\t in the content
    path !EAGAIN          its driver had no value

What tells one device from others of its kind is left out or replaced: serial numbers, UUIDs, MACs, the host's name.
What nobody reads is not recorded, so there is no more to look through than what the readings come from.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

from firstline_core.hardware.readings import Absent
from firstline_core.hardware.tree import NO_VALUE_NOW, Tree

_PRIVATE = ("proc/self/mounts",)  # names servers and folders, and says nothing of the board
_SERIAL = re.compile(r"^[^:=\n]*(?:serial|uuid)[^:=\n]*[:=].*\n?", re.IGNORECASE | re.MULTILINE)
_UUID = r"[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}"
_MAC = r"(?<![0-9a-f])[0-9a-f]{2}(?P<between>[:_-])(?:[0-9a-f]{2}(?P=between)){4}[0-9a-f]{2}(?![0-9a-f])"
_IN_CONTENT = re.compile(f"{_UUID}|{_MAC}", re.IGNORECASE)
# Names have them without separators too (enx0123456789ab, a container's id); in contents such are numbers.
_IN_NAMES = re.compile(f"{_IN_CONTENT.pattern}|[0-9a-f]{{12,}}", re.IGNORECASE)
_HEX = re.compile("[0-9a-f]", re.IGNORECASE)
_NO_NAME = re.compile(r"[^!-~]")  # what a line of a board cannot hold as a path


class Recording(Tree):
    """Read it as any tree, then ask for `lines`.

    Args:
        root: where the kernel's files begin.
        host: the device's name, which is left out; "" for none.
    """

    def __init__(self, root: Path = Path("/"), host: str | None = None) -> None:
        super().__init__(root)
        self._host = platform.node() if host is None else host
        self._said: dict[str, str | Absent] = {}
        self._there: set[str] = set()
        self._replaced: dict[str, str] = {}

    def names(self, folder: str, pattern: str) -> list[str]:
        """As a tree's; what was found is recorded."""
        found = super().names(folder, pattern)
        self._there.update(found)
        return found

    def has(self, path: str) -> bool:
        """As a tree's; what is there is recorded."""
        found = super().has(path)
        if found:
            self._there.add(path)
        return found

    def text(self, path: str, limit_bytes: int = 4096) -> str | Absent:
        """As a tree's; what it says is recorded."""
        found = super().text(path, limit_bytes)
        if path not in _PRIVATE and super().has(path):
            self._said[path] = found
        return found

    def lines(self) -> list[str]:
        """What was read until now: files by their paths, and as remarks those that could not be read."""
        said, lines = self._said, []
        for path in sorted(said.keys() | self._only_there()):
            name = self._without_names(path)
            found = said.get(path, "")
            if _NO_NAME.search(name):
                continue
            if isinstance(found, str):
                lines.append(f"{name} = {self._content(path, found)}".rstrip(" ") + (" " if not found else ""))
            else:
                why = found.reason.partition(": ")[2]
                lines.append(f"{name} !EAGAIN" if why.startswith(NO_VALUE_NOW) else f"# not read: {name}: {why}")
        return lines

    def _only_there(self) -> set[str]:
        """Files that stand for what was found and not read; of a folder one within it, which nobody asks for."""
        above = {str(parent) for path in (*self._said, *self._there) for parent in Path(path).parents}
        alone = self._there - above - self._said.keys()
        return {f"{path}/empty" if (self.root / path).is_dir() else path for path in alone}

    def _content(self, path: str, said: str) -> str:
        text = _SERIAL.sub("", said)
        text = self._without_names(text) if path == "proc/self/cgroup" else _IN_CONTENT.sub(self._other, text)
        text = "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text.strip())
        return text.replace("\n", "\\n").replace("\t", "\\t")

    def _without_names(self, text: str) -> str:
        if self._host:
            text = re.sub(rf"(?<=/){re.escape(self._host)}(?=/|\n|$)", "host", text)
        return _IN_NAMES.sub(self._other, text)

    def _other(self, found: re.Match[str]) -> str:
        """A name of the same form, the same wherever it occurs, and another for each."""
        name = found[0]
        if name not in self._replaced:
            digits = iter(f"{len(self._replaced) + 1:0{len(_HEX.findall(name))}x}")
            self._replaced[name] = _HEX.sub(lambda _: next(digits), name)
        return self._replaced[name]
