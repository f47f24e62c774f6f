r"""Records kernel files that are read, as the text of a board for `tests/data/boards`: one line for each file.

    path = content        with \\n and \\t in the content
    path !EAGAIN          its driver had no value

Identifiers of the device are left out or replaced: serial numbers, UUIDs, MACs and the host's name. Only files that are
read are recorded, so that a person can check the recording.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

from firstline_core.hardware.kernel_files import NO_VALUE_NOW, Tree
from firstline_core.hardware.readings import Absent

_PRIVATE = ("proc/self/mounts",)  # names servers and folders, and nothing of the board
_SERIAL = re.compile(r"^[^:=\n]*(?:serial|uuid)[^:=\n]*[:=].*\n?", re.IGNORECASE | re.MULTILINE)
_UUID = r"[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}"
_MAC = r"(?<![0-9a-f])[0-9a-f]{2}(?P<between>[:_-])(?:[0-9a-f]{2}(?P=between)){4}[0-9a-f]{2}(?![0-9a-f])"
_IN_CONTENT = re.compile(f"{_UUID}|{_MAC}", re.IGNORECASE)
# Names contain them without separators too (enx0123456789ab, a container's id); in content those are numbers.
_IN_NAMES = re.compile(f"{_IN_CONTENT.pattern}|[0-9a-f]{{12,}}", re.IGNORECASE)
_HEX = re.compile("[0-9a-f]", re.IGNORECASE)
_NO_NAME = re.compile(r"[^!-~]")  # characters that a path in a board's line cannot contain


class Recording(Tree):
    """A tree that records what is read; `lines` returns the recording.

    Args:
        root: where the kernel's files begin.
        host: the device's name, which is left out; "" for none.
    """

    def __init__(self, root: Path = Path("/"), host: str | None = None) -> None:
        super().__init__(root)
        self._host = platform.node() if host is None else host
        self._contents: dict[str, str | Absent] = {}
        self._there: set[str] = set()
        self._replaced: dict[str, str] = {}

    def names(self, folder: str, pattern: str) -> list[str]:
        """Lists as `Tree.names`, and records what was found."""
        found = super().names(folder, pattern)
        self._there.update(found)
        return found

    def has(self, path: str) -> bool:
        """Checks as `Tree.has`, and records what exists."""
        found = super().has(path)
        if found:
            self._there.add(path)
        return found

    def text(self, path: str, limit_bytes: int = 4096) -> str | Absent:
        """Reads as `Tree.text`, and records the content."""
        found = super().text(path, limit_bytes)
        if path not in _PRIVATE and super().has(path):
            self._contents[path] = found
        return found

    def lines(self) -> list[str]:
        """Returns the recording: files by path, and remarks for those that could not be read."""
        contents, lines = self._contents, []
        for path in sorted(contents.keys() | self._only_there()):
            name = self._without_names(path)
            found = contents.get(path, "")
            if _NO_NAME.search(name):
                continue
            if isinstance(found, str):
                lines.append(f"{name} = {self._content(path, found)}".rstrip(" ") + (" " if not found else ""))
            else:
                why = found.reason.partition(": ")[2]
                lines.append(f"{name} !EAGAIN" if why.startswith(NO_VALUE_NOW) else f"# not read: {name}: {why}")
        return lines

    def _only_there(self) -> set[str]:
        """Files for what was found but not read; for a folder, an unused file inside it."""
        above = {str(parent) for path in (*self._contents, *self._there) for parent in Path(path).parents}
        alone = self._there - above - self._contents.keys()
        return {f"{path}/empty" if (self.root / path).is_dir() else path for path in alone}

    def _content(self, path: str, content: str) -> str:
        text = _SERIAL.sub("", content)
        text = self._without_names(text) if path == "proc/self/cgroup" else _IN_CONTENT.sub(self._other, text)
        text = "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text.strip())
        return text.replace("\n", "\\n").replace("\t", "\\t")

    def _without_names(self, text: str) -> str:
        if self._host:
            text = re.sub(rf"(?<=/){re.escape(self._host)}(?=/|\n|$)", "host", text)
        return _IN_NAMES.sub(self._other, text)

    def _other(self, found: re.Match[str]) -> str:
        """A replacement of the same form, equal for equal identifiers."""
        name = found[0]
        if name not in self._replaced:
            digits = iter(f"{len(self._replaced) + 1:0{len(_HEX.findall(name))}x}")
            self._replaced[name] = _HEX.sub(lambda _: next(digits), name)
        return self._replaced[name]
