"""The result cache's SQLite file: keys, sealed values, when they end. Read here, on the event loop; see `writer.py`."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Generic

from firstline_edge.cache.key_filter import KeyFilter
from firstline_edge.cache.writer import PAGE_BYTES, Value, Writer

FILE_NAME = "cache.db"
UNREADABLE = (sqlite3.DatabaseError,)
"""What a file raises that is no such database."""

_VERSION = 2
# While one writes, all may read. Both wait only for others who look at the file: reads are inline on the event loop.
_READ_TIMEOUT_S, _WRITE_TIMEOUT_S = 0.05, 1.0
# Small devices: one megabyte of page cache, and no mapping that a failing SD card turns into SIGBUS.
_SMALL = ("PRAGMA cache_size = 256", "PRAGMA mmap_size = 0")
_READING = (*_SMALL, "PRAGMA query_only = ON")
_WRITING = (
    *_SMALL,
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA auto_vacuum = FULL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
)
# Row ids rise, so that they tell who came first.
_TABLE = "CREATE TABLE results (key BLOB NOT NULL UNIQUE, value BLOB NOT NULL, expires_s REAL NOT NULL)"
_INDEX = "CREATE INDEX results_by_end ON results (expires_s)"
_KEYS = "SELECT rowid, key FROM results WHERE rowid > ? ORDER BY rowid LIMIT ?"
_FIND = "SELECT value, expires_s FROM results WHERE key = ?"


class Database(Generic[Value]):
    """A bounded map on disk.

    Args:
        directory: exists.
        limit_bytes, write: see `Writer`.

    Attributes:
        writer: what is to be there. It is asked first, for it knows what the file has not yet.
        filter: which keys may be there.

    Raises:
        sqlite3.Error: the file is no such database, or cannot be read, or not be written.
    """

    def __init__(self, directory: Path, limit_bytes: int, write: Callable[[Value, bytes], bytes]) -> None:
        self.filter = KeyFilter()
        self._learned_to = 0  # the row id up to which the filter knows the keys
        path = directory / FILE_NAME
        with contextlib.ExitStack() as failing:
            writing = failing.enter_context(contextlib.closing(_opened_for_writing(path)))
            if writing.execute("PRAGMA user_version").fetchone() != (_VERSION,):  # another version's, or a new one
                writing.close()
                _empty(directory)
                writing = failing.enter_context(contextlib.closing(_opened_for_writing(path)))
                for statement in (_TABLE, _INDEX, f"PRAGMA user_version = {_VERSION}"):
                    writing.execute(statement)
                self.filter.complete = True
            reading = failing.enter_context(contextlib.closing(_opened(path, _READ_TIMEOUT_S, *_READING)))
            # What can be opened may still not be whole or writable.
            reading.execute(_FIND, (b"probe",)).fetchone()
            writing.execute("BEGIN IMMEDIATE")
            writing.execute("ROLLBACK")
            failing.pop_all()
        self._connection = reading
        self.writer = Writer(writing, limit_bytes, write, self.filter.passes)

    def get(self, key: bytes) -> tuple[object, float] | None:
        """What the file holds under the key, and when it ends by the wall's clock; whoever wrote it chose its type.

        None where that is outdated, see `Writer.outdated`.
        """
        if self.writer.outdated(key):
            return None
        found: tuple[object, float] | None = self._connection.execute(_FIND, (key,)).fetchone()
        return found

    def settle(self) -> bool:
        """Hears what became of what was written, and whether anything was; see `Writer.settle`."""
        written = tuple(self.writer.settle())
        self.filter.add(written)
        return bool(written)

    def learn_some(self, limit: int) -> bool:
        """Learns which keys the file holds, no more than `limit` at once; whether there are more."""
        if not self.filter.complete:
            found = self._connection.execute(_KEYS, (self._learned_to, limit)).fetchall()
            self.filter.add(key for _, key in found)
            self._learned_to = found[-1][0] if found else self._learned_to
            self.filter.complete = len(found) < limit
        return not self.filter.complete

    def close(self) -> None:
        """Writes what waits, and lets go of the file; calling it twice is harmless."""
        self._connection.close()
        self.writer.close()


def _opened_for_writing(path: Path) -> sqlite3.Connection:
    return _opened(path, _WRITE_TIMEOUT_S, *_WRITING)


def _opened(path: Path, timeout_s: float, *settings: str) -> sqlite3.Connection:
    # Whichever thread uses it does so alone.
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        for statement in settings:
            connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _empty(directory: Path) -> None:
    """Of folders, too, in which an earlier version kept large results."""
    for found in directory.iterdir():
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()
