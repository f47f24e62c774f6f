"""diskcache as the result cache uses it: bytes only, without pickles, and with puts that share a commit.

diskcache unpickles what it finds in its database and its files (CVE-2025-69872; its JSONDisk too), so whoever can
write there runs code here. `BytesDisk` stores bytes in the database only, and refuses anything else that it finds.

A result is small and a commit is not: alone it would write seven pages. Many share one, so that a power cut costs the
last few results, and flash memory is spared (`make wear`).
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import diskcache
from diskcache.core import MODE_RAW, UNKNOWN

# What is put shares a commit with so many others, and waits no longer for them than the next one after so long.
_GROUP_PUTS, _GROUP_S = 64, 60.0
_ITS_OWN_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
UNREADABLE = (sqlite3.DatabaseError, AttributeError, KeyError, TypeError, ValueError)
"""What diskcache raises on a database that is not its own, beside sqlite3's errors."""
REFUSED = (sqlite3.Error, diskcache.Timeout, OSError)
"""What it raises where the disk does not do as it is told."""


class ForeignEntryError(Exception):
    """The cache directory holds an entry that this agent cannot have written."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Keys and values are `bytes` kept in the database; no pickle is ever written or read."""

    def put(self, key: object) -> tuple[bytes, bool]:
        if type(key) is not bytes:
            _refuse(f"a key of type {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> bytes:
        if not raw or type(key) is not bytes:
            _refuse("a pickled key")
        return key

    def store(self, value: object, read: bool, key: object = UNKNOWN) -> tuple[int, int, None, bytes]:
        if read or type(value) is not bytes:
            _refuse(f"a value of type {type(value).__name__}")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        if mode != MODE_RAW or filename is not None or read or type(value) is not bytes:
            _refuse("a pickled value or a file")
        return value

    def remove(self, file_path: str) -> None:
        # The name comes from the database: only a name that diskcache could have made is followed.
        if _ITS_OWN_FILE.fullmatch(file_path):
            super().remove(file_path)


def _refuse(what: str) -> NoReturn:
    raise ForeignEntryError(f"The result cache refuses {what}; it holds bytes only.")


class Database(diskcache.Cache):  # type: ignore[misc]  # diskcache has no types
    """With puts that share a commit, and can be read before it. The first goes alone, to see what the disk does."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._group: AbstractContextManager[None] | None = None
        self._puts, self._puts_limit = 0, 1
        self._commit_at_s = 0.0
        try:
            super().__init__(*arguments, **settings)
        except (*REFUSED, *UNREADABLE):
            self.close()  # diskcache would leave the connection to the garbage collector
            raise

    def put(self, key: bytes, value: bytes, ttl_s: float, now_s: float) -> bool:
        """As `set`, in a group; whether the disk has taken one now."""
        if self._group is None:
            group = self.transact()
            group.__enter__()
            self._group, self._puts, self._commit_at_s = group, 0, now_s + _GROUP_S
        try:
            self.set(key, value, expire=ttl_s)
        except BaseException as error:
            self._end_group(error)
            raise
        self._puts += 1
        full = self._puts >= self._puts_limit or now_s >= self._commit_at_s
        if full:
            self.commit()
        return full

    def commit(self) -> None:
        """Has the disk take the open group, if there is one."""
        self._puts_limit = 1
        try:
            self._end_group()
        finally:
            if self._con.in_transaction:  # the disk refused
                self._con.rollback()
        self._puts_limit = _GROUP_PUTS

    def _end_group(self, error: BaseException | None = None) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        if error is None:
            group.__exit__(None, None, None)
            return
        self._puts_limit = 1
        with contextlib.suppress(sqlite3.Error):  # SQLite may have undone it already
            group.__exit__(type(error), error, error.__traceback__)

    def expire_some(self, limit: int) -> int:
        """As `expire`, but no more than `limit`; how many that were."""
        select = "SELECT rowid, filename FROM Cache WHERE expire_time < ? ORDER BY expire_time LIMIT ?"
        with self._transact() as (sql, cleanup):
            rows = sql(select, (time.time(), limit)).fetchall()
            for row_id, filename in rows:
                sql("DELETE FROM Cache WHERE rowid = ?", (row_id,))
                cleanup(filename)
        return len(rows)
