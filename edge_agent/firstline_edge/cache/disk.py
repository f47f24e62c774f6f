"""The part of the result cache on disk: a `diskcache.Cache` of sealed bytes, written in the background.

The cache may always be lost: a database that cannot be read is set aside, and an empty one is started. A disk that is
full or may not be written does not mean that the database is damaged: the database stays, and is tried again later.
Values are sealed with their keys, so a value that the disk has damaged is a miss.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import diskcache

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import give_up, make_folder, set_aside
from firstline_core.storage.seals import ChecksumSeal, Seal
from firstline_core.telemetry.logs import logger
from firstline_edge.cache.bytes_disk import BytesDisk

log = logger(__name__)

_CHECKSUM = ChecksumSeal()
# Small devices: one megabyte of page cache, and no mapping that a failing SD card turns into SIGBUS. Entries are
# evicted after each commit (`_write`): within a transaction the file does not shrink, so diskcache would evict on.
_SETTINGS = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",
    "cull_limit": 0,
    "sqlite_auto_vacuum": 1,  # FULL
    "sqlite_cache_size": 256,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 1,  # NORMAL
}
_LOCK_TIMEOUT_S = 1.0
# A result is small and a commit is not: alone it would write seven pages. So many results share a commit, and none
# waits longer for others than until the next one after so long. That spares flash memory.
_GROUP_PUTS, _GROUP_S = 64, 60.0
_WAITING_LIMIT = 1024  # while the disk is slow
_OUTDATED_LIMIT = 16_384
_RETRY_S = 60.0
_ROUNDING_S = 1.0
# Reads are on the event loop, so a disk that took longer is not read for so many times as long: those reads miss. That
# costs a twentieth of the time at most; a thread would cost each lookup more than its read.
_SLOW_S, _REST_TIMES = 0.01, 20

Value = bytes | Callable[[], bytes]
Group = dict[bytes, tuple[Value, float]]


class DiskCache:
    """A bounded map from bytes to bytes with a time to live, for one process and one thread.

    Never raises: an entry that cannot be read or written is a miss, and while the disk refuses, all are. Only `close`
    and `clear` wait for the disk. A power cut loses the last group.

    Args:
        directory: made with mode 0700; set aside as a whole if its database cannot be read.
        limit_bytes: of the database; the oldest entries are evicted first.
        ttl_s: seconds that an entry lives, in wall time, which also counts across restarts.
        seal: closes the values.
        clock: says when to try again.

    Attributes:
        damage: what happened to an earlier database, in a sentence; "" if nothing did.
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
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._ttl_s = ttl_s
        self._seal = seal
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cache-writer")
        self._waiting: Group = {}
        self._due_s = 0.0
        self._group_limit = 1  # the first put goes alone, to see what the disk does
        self._flush = False  # the next group does not wait for more puts
        self._writing: Future[None] | None = None
        self._written: Group = {}  # by the group that is being written
        # Keys of which the disk may hold an older value, because a newer one was never written.
        self._outdated: set[bytes] = set()
        self._removed: set[bytes] = set()  # by the group that is being written
        self._retry_at_s = 0.0
        self._rests_until_s = 0.0
        self._problem = ""
        self.damage = ""
        self._cache: diskcache.Cache | None = None
        self._open()

    @property
    def problem(self) -> str:
        """Why nothing is stored at the moment, in a sentence; "" if all is well."""
        self._settle()
        return self._problem

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The value and the seconds that it has left to live."""
        if self._cache is None and self._usable() is None:
            return None
        found = self._waiting.get(key) or self._written.get(key)
        if found is not None:
            value, expires_s = found
            left_s = self._left_s(expires_s)
            return None if left_s is None else (value if isinstance(value, bytes) else value(), left_s)
        if key in self._outdated or key in self._removed:
            return None
        sealed, until_s = self._read(key)
        if until_s is None or (left_s := self._left_s(until_s)) is None:
            return None
        try:
            if sealed is None:
                raise IntegrityError("It is not what this agent writes.")
            return self._seal.open(sealed, key), left_s
        except IntegrityError as error:
            log.warning("removed a cache entry that cannot be read", error=error.message)
            self._outdated.add(key)
            return None

    def put(self, key: bytes, value: Value) -> None:
        """Stores a value, at the latest when the cache is closed; the oldest entries make room.

        Args:
            key: replaces what is there.
            value: or a function that makes it, called by the writing thread.
        """
        if self._writing is not None:
            self._settle()
        if self._cache is None and self._usable() is None:
            return
        now_s = self._clock.monotonic_s()
        if not self._waiting:
            self._due_s = now_s + _GROUP_S
        self._waiting.pop(key, None)  # it is among the newest now
        self._waiting[key] = (value, time.time() + self._ttl_s)
        if len(self._waiting) >= self._group_limit or now_s >= self._due_s:
            self._begin()
        if len(self._waiting) > _WAITING_LIMIT:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._written.pop(oldest, None)
            self._outdated.add(oldest)

    def expire(self) -> None:
        """Writes what waits and removes expired entries, both in the background."""
        self._settle()
        if self._usable() is not None:
            self._flush = True
            self._begin()

    def clear(self) -> list[Path]:
        """Starts an empty cache; returns what is still to be erased, see `storage.files.give_up`.

        Raises:
            OSError: the disk refuses.
        """
        try:
            self._forget()
            self._shut()
            return give_up(self._directory)
        finally:
            self.damage = ""
            self._open()

    def close(self) -> None:
        """Writes what waits and closes the database; calling it twice is harmless."""
        if self._writing is not None:
            wait([self._writing])
            self._settle()
        self._retry_at_s = math.inf
        if self._cache is not None and (self._waiting or self._outdated):
            self._begin()
            if self._writing is not None and (error := self._writing.exception()) is not None:
                log.warning("the disk refuses the latest results", results=len(self._written), error=str(_cause(error)))
        self._shut()
        self._thread.shutdown()

    def _left_s(self, expires_s: float) -> float | None:
        """Seconds that an entry has left; None if it has expired.

        An entry from the future was stored before the clock was set back: its age is unknown until that time comes.
        """
        left_s = expires_s - time.time()
        return left_s if 0 < left_s <= self._ttl_s + _ROUNDING_S else None

    def _begin(self) -> None:
        """Starts to write what waits, unless a group is being written."""
        if self._cache is None or self._writing is not None:
            return
        self._flush = False
        self._written, self._waiting = self._waiting, {}
        self._removed, self._outdated = self._outdated, set()
        self._writing = self._thread.submit(
            _write, self._cache, list(self._written.items()), self._removed, self._seal, self._limit_bytes
        )

    def _settle(self) -> None:
        """Takes note of what became of the group that was being written; starts the next one if it is complete."""
        if self._writing is None or not self._writing.done():
            return
        error, written, removed = self._writing.exception(), self._written, self._removed
        self._writing, self._written, self._removed = None, {}, set()
        if error is not None:
            self._group_limit = 1
            self._outdated |= removed | written.keys()
            self._fail(error)
        elif written:  # any disk can write nothing
            self._group_limit = _GROUP_PUTS
            self._problem = ""
        if self._flush or len(self._waiting) >= self._group_limit:
            self._begin()

    def _read(self, key: bytes) -> tuple[bytes | None, float | None]:
        """The sealed value and when it expires; (None, None) if there is none, or the disk refuses or rests."""
        began_s = self._clock.monotonic_s()
        if self._cache is None or began_s < self._rests_until_s:
            return None, None
        try:
            found: tuple[bytes | None, float | None] = self._cache.get(key, expire_time=True)
            return found
        except Exception as error:  # noqa: BLE001 (whatever reading raises is a miss)
            self._fail(error)
            return None, None
        finally:
            now_s = self._clock.monotonic_s()
            if now_s - began_s > _SLOW_S:
                self._rests_until_s = now_s + _REST_TIMES * (now_s - began_s)

    def _usable(self) -> diskcache.Cache | None:
        """The database, opened again if that failed a while ago; None while it cannot be used."""
        if self._cache is None and self._clock.monotonic_s() >= self._retry_at_s:
            self._open()
            if self._cache is not None:
                log.info("the cache on disk can be used again", path=str(self._directory))
        return self._cache

    def _open(self) -> None:
        try:
            make_folder(self._directory)
            try:
                self._cache = _opened(self._directory, self._limit_bytes)
            except Exception as error:
                if _is_refusal(error):
                    raise
                self._set_aside(error)
                self._cache = _opened(self._directory, self._limit_bytes)
        except Exception as error:  # noqa: BLE001 (no request may fail because of the cache)
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._refuse(error)
        else:
            self._problem = ""

    def _fail(self, error: BaseException) -> None:
        """Sets a damaged database aside and starts an empty one; tells of a disk that refuses."""
        if _is_refusal(error):
            self._refuse(error)
            return
        self._forget()
        self._shut()
        try:
            self._set_aside(error)
        except OSError as refused:
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._refuse(refused)
        else:
            self._open()

    def _set_aside(self, why: BaseException) -> None:
        aside = set_aside(self._directory)
        make_folder(self._directory)
        self.damage = (
            f"It could not be read ({_cause(why)}), and was set aside as {aside.name}; an empty one was begun."
        )
        log.warning("the cache on disk cannot be read; starting empty", moved_to=str(aside), error=str(_cause(why)))

    def _refuse(self, error: BaseException) -> None:
        """Logs once, however many entries it concerns."""
        if not self._problem:
            log.warning("cannot use the cache on disk", path=str(self._directory), error=str(_cause(error)))
        self._problem = (
            f"The disk refuses the result cache: {_cause(error)}. Free space, or correct who may write there."
        )

    def _forget(self) -> None:
        """What waits need not be written."""
        self._waiting = {}
        self._outdated = set()

    def _shut(self) -> None:
        """Waits for what is being written, and closes the database in both threads."""
        cache, self._cache = self._cache, None
        if cache is not None:
            self._thread.submit(cache.close).result()
            cache.close()
        self._writing, self._written, self._removed = None, {}, set()


def _opened(directory: Path, limit_bytes: int) -> diskcache.Cache:
    """Opens or makes the database; raises whatever SQLite or diskcache raise if it is damaged or refused."""
    cache = diskcache.Cache(
        str(directory), timeout=_LOCK_TIMEOUT_S, disk=BytesDisk, size_limit=limit_bytes, **_SETTINGS
    )
    try:
        cache.get(b"")
        cache.volume()
        with cache.transact():
            pass
    except BaseException:
        cache.close()
        raise
    return cache


def _write(
    cache: diskcache.Cache,
    group: Collection[tuple[bytes, tuple[Value, float]]],
    removed: Collection[bytes],
    seal: Seal,
    limit_bytes: int,
) -> None:
    """Commits a group, then evicts what has expired or does not fit; in the writing thread."""
    try:
        with cache.transact():
            if len(removed) > _OUTDATED_LIMIT:
                cache.clear()
            else:
                for key in removed:
                    cache.delete(key)
            for key, (value, expires_s) in group:
                sealed = seal.close(value if isinstance(value, bytes) else value(), key)
                if len(sealed) <= limit_bytes // 2:
                    cache.set(key, sealed, expire=expires_s - time.time())
                else:
                    cache.delete(key)
        while cache.expire():  # of entries that expire at the same moment, one call removes 100
            pass
        cache.cull()
    except BaseException:
        cache.close()  # after a commit that failed the transaction is still open
        raise


def _is_refusal(error: BaseException) -> bool:
    """Whether the disk or another process refuses, so that the database itself may be well.

    Among SQLite's operational errors only the plain SQLITE_ERROR is about the content: a table or column is missing.
    """
    cause = _cause(error)
    if isinstance(cause, sqlite3.OperationalError):
        return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF != sqlite3.SQLITE_ERROR
    return isinstance(cause, OSError)


def _cause(error: BaseException) -> BaseException:
    """SQLite's first error: diskcache hides it behind a Timeout, or behind an error of its rollback."""
    first = error.__context__
    hidden = isinstance(error, diskcache.Timeout | sqlite3.OperationalError) and isinstance(first, sqlite3.Error)
    return _cause(first) if first is not None and hidden else error
