"""The cache's part on disk: diskcache, with everything that unpickles taken out. Bytes in, bytes out.

diskcache unpickles what it finds in its database and its files (CVE-2025-69872; its JSONDisk too), so whoever can
write there runs code here. `BytesDisk` stores bytes in the database only, and refuses anything else that it finds.
The cache may always be lost: a database that cannot be read is set aside and a fresh one is begun. A disk that is
full or may not be written is no fault of the database's: it stays where it is, and is tried again later. Values are
sealed under their keys, so that what the disk has damaged is a miss.

A result is small and a commit is not: alone it would write seven pages. Many share one, so that a power cut costs the
last few results, and flash memory lives seven times as long.
"""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import diskcache
from diskcache.core import MODE_RAW, UNKNOWN

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import give_up, make_folder, set_aside
from firstline_core.storage.seals import ChecksumSeal, Seal
from firstline_core.telemetry.logs import logger

log = logger(__name__)

# diskcache reads its database inline on the event loop; nobody else should hold its lock for longer.
_LOCK_TIMEOUT_S = 0.05
_ITS_OWN_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
_EXPIRED_AT_ONCE = 100
_RETRY_S = 60.0
# What is put shares a commit with so many others, and waits no longer for them than the next one after so long.
_GROUP_PUTS, _GROUP_S = 64, 60.0
_ROUNDING_S = 1.0
# What diskcache raises on a database that is not its own, beside sqlite3's errors.
_UNREADABLE = (sqlite3.DatabaseError, AttributeError, KeyError, TypeError, ValueError)
_REFUSED = (sqlite3.Error, diskcache.Timeout, OSError)


_CHECKSUM = ChecksumSeal()


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


class DiskCache:
    """A bounded map from bytes to bytes with a time to live, for one process and one thread.

    Never raises: an entry that cannot be read or written is a miss, and while the disk refuses, all are.

    Args:
        directory: made with mode 0700; set aside as a whole where its database cannot be read.
        limit_bytes: of the database; the oldest entries go first.
        ttl_s: seconds that an entry lives, in wall time, for it must count across restarts.
        seal: closes the values.
        clock: for when to try again.

    Attributes:
        problem: why nothing is kept at the moment, in a sentence; "" while all is well.
        damage: what had happened to an earlier one, in a sentence; "" where nothing had.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limit_bytes: int,
        ttl_s: float,
        seal: Seal = _CHECKSUM,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._seal = seal
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._retry_at_s = 0.0
        self.problem = ""
        self.damage = ""
        self._cache = self._open()

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The value and the seconds that it has left to live."""
        cache = self._opened()
        if cache is None:
            return None
        try:
            value, expires_s = cache.get(key, expire_time=True)
        except ForeignEntryError as error:
            log.warning("removed a foreign cache entry", error=str(error))
            self._delete(cache, key)
            return None
        except _REFUSED as error:
            self._failed(error)
            return None
        if value is None or expires_s is None:
            return None
        left_s = expires_s - time.time()
        # From the future, by a clock that was set back since: how old it is cannot be known, until that time has come.
        if left_s > self._ttl_s + _ROUNDING_S:
            return None
        try:
            return self._seal.open(value, key), left_s
        except IntegrityError as error:
            log.warning("removed a cache entry that cannot be read", error=error.message)
            self._delete(cache, key)
            return None

    def put(self, key: bytes, value: bytes) -> None:
        """Stores a value, at the latest when the cache is closed; the oldest entries make room."""
        cache = self._opened()
        if cache is None:
            return
        try:
            if cache.put(key, self._seal.close(value, key), self._ttl_s, self._clock.monotonic_s()):
                self.problem = ""
        except _REFUSED as error:
            self._failed(error)

    def expire(self) -> bool:
        """Removes a few of those that have lived their time, which would otherwise wait for room to be needed.

        Returns:
            Whether there may be more. There may be a hundred thousand after days without power: nobody should wait
            for all of them at once.
        """
        cache = self._opened()
        if cache is None:
            return False
        try:
            return bool(cache.expire_some(_EXPIRED_AT_ONCE) == _EXPIRED_AT_ONCE)
        except _REFUSED as error:
            self._failed(error)
            return False

    def clear(self) -> list[Path]:
        """Begins anew; returns what is still to be erased, see `storage.files.give_up`.

        Raises:
            OSError: the disk refuses.
        """
        try:
            self._close()
            return give_up(self._directory)
        finally:
            self.damage = ""
            self._cache = self._open()

    def close(self) -> None:
        """Closes the database; calling it twice is harmless."""
        self._retry_at_s = math.inf
        self._close()

    def _delete(self, cache: Any, key: bytes) -> None:
        try:
            cache.delete(key)
        except _REFUSED as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, sqlite3.DatabaseError) and not _heals(error):
            self._close()
            self._cache = self._open(damaged=str(error))
        else:
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        """Said once, however many entries it concerns."""
        if not self.problem:
            log.warning("cannot use the cache on disk", path=str(self._directory), error=str(error))
        self.problem = f"The disk refuses the result cache: {error}. Free space, or correct who may write there."

    def _opened(self) -> Any:
        """The database, opened again where that failed a while ago; None while it cannot be."""
        if self._cache is None and self._clock.monotonic_s() >= self._retry_at_s:
            self._cache = self._open()
            if self._cache is not None:
                log.info("the cache on disk can be used again", path=str(self._directory))
        return self._cache

    def _open(self, damaged: str = "") -> Any:
        try:
            if damaged:
                self._set_aside(damaged)
            make_folder(self._directory)
            cache = self._open_whole()
        except _REFUSED as error:
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._refused(error)
            return None
        self.problem = ""
        return cache

    def _open_whole(self) -> Any:
        cache = None
        try:
            cache = self._open_database()
            cache.get(b"probe")
            with cache.transact():  # a database that can be read may still not be writable or whole
                pass
            return cache
        except _UNREADABLE as error:
            if cache is not None:
                cache.close()
            if _heals(error):
                raise
            self._set_aside(str(error))
            make_folder(self._directory)
            return self._open_database()

    def _set_aside(self, why: str) -> None:
        aside = set_aside(self._directory)
        self.damage = f"It could not be read ({why}), and was set aside as {aside.name}; an empty one was begun."
        log.warning("the cache on disk cannot be read; starting empty", moved_to=str(aside), error=why)

    def _close(self) -> None:
        if self._cache is not None:
            with contextlib.suppress(*_REFUSED):
                self._cache.commit()
            self._cache.close()

    def _open_database(self) -> Any:
        return _Database(
            str(self._directory),
            timeout=_LOCK_TIMEOUT_S,
            disk=BytesDisk,
            size_limit=self._limit_bytes,
            eviction_policy="least-recently-stored",  # the one policy whose reads do not write
            cull_limit=10,
            statistics=0,
            tag_index=0,
            # Small devices: one megabyte of page cache, and no mapping that a failing SD card turns into SIGBUS.
            sqlite_cache_size=256,
            sqlite_mmap_size=0,
        )


class _Database(diskcache.Cache):  # type: ignore[misc]  # diskcache has no types
    """With puts that share a commit, and can be read before it. The first goes alone, to see what the disk does."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._group: AbstractContextManager[None] | None = None
        self._puts, self._puts_limit = 0, 1
        self._commit_at_s = 0.0
        try:
            super().__init__(*arguments, **settings)
        except (*_REFUSED, *_UNREADABLE):
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


def _heals(error: Exception) -> bool:
    """Whether the trouble is the disk's or another process's, and the database itself may be well.

    Of SQLite's operational errors the plain SQLITE_ERROR alone is about what the database holds: a table or a column
    that is not there.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF != sqlite3.SQLITE_ERROR
