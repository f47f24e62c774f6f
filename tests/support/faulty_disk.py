"""A disk that loses power, fills up and fails, under code that does not know: the one the processes really run on.

A small library (`faulty_disk.c`, compiled here) is preloaded into a process of its own. It records every change that
the process makes below a folder, and can make any of them fail. From a recording, `Recording.crash` builds the folder
as a power cut could have left it at any moment: what was synced is there; of what was not, each 512-byte sector is
there or not, in no order (ALICE, Pillai et al., OSDI 2014, does the same with system calls).

Why not a VFS of apsw's: that is known to the SQLite that apsw brings, not to the one in Python's `sqlite3`, so that
other code would be tested on another SQLite; and half of what a device keeps (JSON files, line logs, copies of
bundles) is not a database. Here the statements, the library and the calls are those of the product.

The model, as strict as POSIX: a file's data is safe once the file was synced; a name (made, moved, removed) once its
folder was, and not because the file was. Within a folder names change in order, as every journaling file system has
it; between a name and the data there is no order.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.needs import program

SECTOR_BYTES = 512
_HEAD = struct.Struct("<cIQI")
_PASSED_OVER = "-shm"  # SQLite's shared memory is a file, but no data: it is created again after a crash


class Change(NamedTuple):
    """One line of the recording; see `faulty_disk.c` for the kinds."""

    kind: str
    path: str
    offset: int
    data: bytes


@dataclass(eq=False)
class _File:
    """A file, whichever name it has: its changes, and how many of them were synced."""

    changes: list[Change] = field(default_factory=list)
    synced: int = 0


@dataclass(eq=False)
class _Folder:
    """A folder: its changes of names, and how many of them were synced."""

    changes: list[dict[str, _File | _Folder | None]] = field(default_factory=list)
    synced: int = 0


class Recording:
    """What a process did to a folder, change by change."""

    def __init__(self, root: Path, changes: Sequence[Change]) -> None:
        self.root = root
        self.changes = list(changes)

    @property
    def marks(self) -> list[tuple[int, str]]:
        """What the process said, and after how many changes."""
        return [(number, change.data.decode()) for number, change in enumerate(self.changes) if change.kind == "K"]

    def points(self) -> list[int]:
        """The moments before and after each change that reached the disk."""
        return [number for number, change in enumerate(self.changes) if change.kind in "WTFDRUCM"] + [len(self.changes)]

    def crash(self, point: int, rng: random.Random, into: Path, *, kept_share: float | None = None) -> list[list[str]]:
        """Builds the folder as it may be found after a power cut before change number `point`.

        Args:
            point: how many changes had been made.
            rng: which of the unsynced sectors and names are there.
            into: becomes the root; what was there is removed.
            kept_share: the share of unsynced sectors that is there; None draws it: often none, all or half of them.

        Returns:
            What the process had said until then, each in its words.
        """
        shutil.rmtree(into, ignore_errors=True)
        share = rng.choice([0.0, 1.0, 0.5, rng.random()]) if kept_share is None else kept_share
        _write_folder(self._replay(point), into, rng, share)
        return [mark.split() for number, mark in self.marks if number < point]

    def _replay(self, point: int) -> _Folder:
        root = _Folder()
        live: dict[str, _File | _Folder] = {str(self.root): root}

        def named(names: dict[str, _File | _Folder | None]) -> None:
            folder = live[str(Path(next(iter(names))).parent)]
            assert isinstance(folder, _Folder)
            folder.changes.append({Path(path).name: what for path, what in names.items()})

        for change in self.changes[:point]:
            kind, path = change.kind, change.path
            if kind in "CM":
                live[path] = _File() if kind == "C" else _Folder()
                named({path: live[path]})
            elif kind == "R":
                moved = change.data.decode()
                for old in [name for name in live if name == path or name.startswith(path + "/")]:
                    live[moved + old.removeprefix(path)] = live.pop(old)
                if Path(path).parent == Path(moved).parent:
                    named({path: None, moved: live[moved]})
                else:  # two folders, each of which is synced by itself
                    named({moved: live[moved]})
                    named({path: None})
            elif kind == "U":
                live.pop(path)
                named({path: None})
            elif kind in "WT" and isinstance(target := live.get(path), _File):
                target.changes.append(change)
            elif kind in "FD" and path in live:
                live[path].synced = len(live[path].changes)
        return root


def _write_folder(folder: _Folder, into: Path, rng: random.Random, share: float) -> None:
    into.mkdir(exist_ok=True, mode=0o700)
    entries: dict[str, _File | _Folder | None] = {}
    unsynced = len(folder.changes) - folder.synced
    there = folder.synced + (unsynced if share == 1 else 0 if share == 0 else rng.randint(0, unsynced))
    for names in folder.changes[:there]:
        entries |= names
    for name, what in entries.items():
        if isinstance(what, _Folder):
            _write_folder(what, into / name, rng, share)
        elif what is not None and not name.endswith(_PASSED_OVER):
            (into / name).write_bytes(_content(what, rng, share))
            (into / name).chmod(0o600)


def _content(file: _File, rng: random.Random, share: float) -> bytes:
    content = bytearray()
    for number, change in enumerate(file.changes):
        synced = number < file.synced
        if change.kind == "T":
            if synced or rng.random() < share:
                content[:] = content[: change.offset].ljust(change.offset, b"\0")
            continue
        for at, part in [(change.offset, change.data)] if synced else _sectors(change):
            if synced or rng.random() < share:
                content.extend(b"\0" * (at - len(content)))
                content[at : at + len(part)] = part
    return bytes(content)


def _sectors(change: Change) -> Iterator[tuple[int, bytes]]:
    """A write, cut where sectors begin."""
    at, end = change.offset, change.offset + len(change.data)
    while at < end:
        until = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield at, change.data[at - change.offset : until - change.offset]
        at = until


@functools.cache
def _library() -> Path:
    """The preloaded library, compiled once for this process, which removes it at its end."""
    if sys.platform != "linux":
        pytest.skip("disks are made to fail by a library of Linux's")
    compiler = program("cc", "any C compiler, for the tests of failing disks")
    folder = tempfile.mkdtemp(prefix="faulty-disk-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder) / "faulty_disk.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory, where there is one: what is tested is the order of writes, and not how long a sync takes."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def run_on(root: Path, script: str, *arguments: str, record: bool = True) -> tuple[str, Recording]:
    """Runs a script in a process whose changes below `root` are watched; what it printed, and the recording.

    The script may import this module, for `mark` and `fail`.
    """
    log = root.with_name(root.name + ".recording")
    environment = os.environ | {"LD_PRELOAD": str(_library()), "FAULTY_DISK_ROOT": str(root)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    if record:
        environment["FAULTY_DISK_LOG"] = str(log)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root), *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    changes = list(_parsed(log.read_bytes())) if record else []
    return done.stdout, Recording(root, changes)


def counts_on(root: Path, script: str, *arguments: object) -> dict[str, Any]:
    """Runs a script as `run_on` does, without a recording; what its last line counts, in JSON."""
    printed, _ = run_on(root, script, *map(str, arguments), record=False)
    return json.loads(printed.splitlines()[-1])


def _parsed(text: bytes) -> Iterator[Change]:
    at = 0
    while at < len(text):
        kind, path_bytes, offset, data_bytes = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        path, at = text[at : at + path_bytes].decode(), at + path_bytes
        yield Change(kind.decode(), path, offset, text[at : at + data_bytes])
        at += data_bytes


# Within the watched process.


def mark(text: str) -> None:
    """Notes in the recording that the process has come so far."""
    ctypes.CDLL(None).faulty_disk_mark(text.encode())


def calls() -> int:
    """How many changes there were so far."""
    return ctypes.CDLL(None).faulty_disk_calls()


def fail(after: int, error: int, *, times: int = 1, torn: bool = False) -> None:
    """Makes a change to come fail.

    Args:
        after: 1 for the next one; -1 for none any more.
        error: its errno.
        times: how many in a row; -1 for all from there on.
        torn: writes store half of their bytes, and say so.
    """
    ctypes.CDLL(None).faulty_disk_fail(
        ctypes.c_long(after), ctypes.c_long(times), ctypes.c_int(error), ctypes.c_int(torn)
    )


def failures(numbers: range) -> Iterator[tuple[int, Callable[[], None]]]:
    """For each of these changes to come: its number, and what makes it fail.

    It fails once, or from there on until space is freed; as a full disk or a failing one does, with what was to be
    written half there or left out.
    """
    for after, (error, torn), times in itertools.product(numbers, ((errno.ENOSPC, True), (errno.EIO, False)), (1, -1)):
        yield after, functools.partial(fail, after, error, times=times, torn=torn)
