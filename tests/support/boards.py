"""Boards' files of /proc and /sys, as their layouts are: built from one text file for each board, see `data/boards`.

One line is one file: `path = content`, with \\n and \\t in the content, or `path !EAGAIN` for one whose driver has no
value now, which is a pipe that is held open, and says exactly that.
"""

from __future__ import annotations

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
