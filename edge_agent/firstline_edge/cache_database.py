"""The result cache's SQLite file: keys, sealed values, when they end. Puts share a commit.

A result is small and a commit is not: alone it would write seven pages. So puts wait in memory for others, and are
read from there; a power cut costs the last few results, and flash memory is spared (`make wear`).
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Generic, TypeVar

from firstline_edge.key_filter import KeyFilter

FILE_NAME = "cache.db"
UNREADABLE = (sqlite3.DatabaseError,)
"""What a file raises that is no such database."""
REFUSED = (sqlite3.Error, OSError)
"""What is raised where the disk does not do as it is told."""

Value = TypeVar("Value")

_VERSION = 2
# What is put shares a commit with so many others, and waits no longer for them than the next one after so long.
_GROUP_PUTS, _GROUP_S = 64, 60.0
_WAITING_LIMIT = 1024  # while the disk is left alone
# Reads are inline on the event loop; nobody else should hold the file's lock for longer.
_LOCK_TIMEOUT_S = 0.05
_PAGE_BYTES = 4096
_SETTINGS = (
    f"PRAGMA page_size = {_PAGE_BYTES}",
    "PRAGMA auto_vacuum = FULL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    # Small devices: one megabyte of page cache, and no mapping that a failing SD card turns into SIGBUS.
    "PRAGMA cache_size = 256",
    "PRAGMA mmap_size = 0",
)
# Row ids rise, so that they tell who came first.
_TABLE = "CREATE TABLE results (key BLOB NOT NULL UNIQUE, value BLOB NOT NULL, expires_s REAL NOT NULL)"
_INDEX = "CREATE INDEX results_by_end ON results (expires_s)"
_KEYS = "SELECT rowid, key FROM results WHERE rowid > ? ORDER BY rowid LIMIT ?"
_FIND = "SELECT value, expires_s FROM results WHERE key = ?"
_PUT = "INSERT OR REPLACE INTO results (key, value, expires_s) VALUES (?, ?, ?)"
_OLDEST = "DELETE FROM results WHERE rowid IN (SELECT rowid FROM results ORDER BY rowid LIMIT ?)"
_EXPIRED = (
    "DELETE FROM results WHERE rowid IN (SELECT rowid FROM results WHERE expires_s < ? ORDER BY expires_s LIMIT ?)"
)


class Database(Generic[Value]):
    """A bounded map on disk. The first put goes alone, to see what the disk does.

    Args:
        directory: exists.
        limit_bytes: of the file; the oldest entries make room.
        write: makes of a value and its key what the file is to hold, once it is written.

    Raises:
        sqlite3.Error: the file is no such database, or the disk refuses.
    """

    def __init__(self, directory: Path, limit_bytes: int, write: Callable[[Value, bytes], bytes]) -> None:
        self._limit_pages = limit_bytes // _PAGE_BYTES
        self._write = write
        self._waiting: dict[bytes, tuple[Value, float]] = {}
        self._group_limit = 1
        self._commit_at_s = 0.0
        self._filter = KeyFilter()
        self._learned_to = 0  # the row id up to which the filter knows the keys
        path = directory / FILE_NAME
        self._connection = self._open(path)
        if self._connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):  # another version's, or a new one
            self._connection.close()
            for found in directory.iterdir():  # which kept large results in folders beside it
                if found.is_dir() and not found.is_symlink():
                    shutil.rmtree(found)
                else:
                    found.unlink()
            self._connection = self._open(path)
            for statement in (_TABLE, _INDEX, f"PRAGMA user_version = {_VERSION}"):
                self._connection.execute(statement)
            self._filter.complete = True

    def _open(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
        try:
            for statement in _SETTINGS:
                connection.execute(statement)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def __len__(self) -> int:
        found: int = self._connection.execute("SELECT count(*) FROM results").fetchone()[0]
        return found + len(self._waiting)

    def check(self) -> None:
        """Raises `sqlite3.Error` where the file cannot be read, or not be written."""
        self._connection.execute(_FIND, (b"probe",)).fetchone()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("ROLLBACK")

    def get(self, key: bytes, *, at_rest: bool = False) -> tuple[object, float] | None:
        """What is kept under the key, and when it ends by the wall's clock; whoever wrote the file chose its type.

        Args:
            key: of a `put`.
            at_rest: whether the disk is to be left alone.
        """
        waiting = self._waiting.get(key)
        if waiting is not None:
            return self._write(waiting[0], key), waiting[1]
        if at_rest or not self._filter.passes(key):
            return None
        found: tuple[object, float] | None = self._connection.execute(_FIND, (key,)).fetchone()
        return found

    def put(self, key: bytes, value: Value, expires_s: float, now_s: float, *, at_rest: bool = False) -> bool:
        """Keeps a value; whether the disk is to take it now, and all that waits: by `commit`.

        Args:
            key: replaces what is there.
            value: to keep.
            expires_s: by the wall's clock.
            now_s: on the monotonic clock.
            at_rest: whether the disk is to be left alone: it waits then, or is forgotten where much waits already.
        """
        if at_rest and len(self._waiting) >= _WAITING_LIMIT:
            return False
        if not self._waiting:
            self._commit_at_s = now_s + _GROUP_S
        self._waiting[key] = (value, expires_s)
        return not at_rest and (len(self._waiting) >= self._group_limit or now_s >= self._commit_at_s)

    def commit(self) -> None:
        """Has the disk take what waits; what it refuses is forgotten."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        self._filter.add(waiting)
        self._group_limit = 1
        rows = [(key, self._write(value, key), expires_s) for key, (value, expires_s) in waiting.items()]
        # Newest first, for there may be more than the file has room for, where it was left alone for long.
        pages = list(accumulate(2 + len(written) // _PAGE_BYTES for _, written, _ in reversed(rows)))
        fit = bisect_right(pages, self._limit_pages)
        rows = rows[len(rows) - fit :]
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._make_room(pages[fit - 1] if fit else 0, len(rows))
            self._connection.executemany(_PUT, rows)
        self._group_limit = _GROUP_PUTS

    def delete(self, key: bytes) -> None:
        self._waiting.pop(key, None)
        self._connection.execute("DELETE FROM results WHERE key = ?", (key,))

    def expire_some(self, limit: int) -> int:
        """Removes what has ended, no more than `limit`; how many that were."""
        self.commit()
        return self._connection.execute(_EXPIRED, (time.time(), limit)).rowcount

    def learn_some(self, limit: int) -> bool:
        """Learns which keys the file holds, no more than `limit` at once; whether there are more."""
        if not self._filter.complete:
            found = self._connection.execute(_KEYS, (self._learned_to, limit)).fetchall()
            self._filter.add(key for _, key in found)
            self._learned_to = found[-1][0] if found else self._learned_to
            self._filter.complete = len(found) < limit
        return not self._filter.complete

    def close(self) -> None:
        """Lets go of the file, and of what waits; calling it twice is harmless."""
        self._connection.close()

    def _make_room(self, pages: int, entries: int) -> None:
        """Removes the oldest until so many pages are free, as many entries at a time as are to come."""
        while self._used_pages() + pages > self._limit_pages:
            if not self._connection.execute(_OLDEST, (entries,)).rowcount:
                return

    def _used_pages(self) -> int:
        total, free = (
            self._connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "freelist_count")
        )
        return int(total - free)
