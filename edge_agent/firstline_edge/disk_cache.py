"""The cache's part on disk, bytes in and bytes out; the database itself stands in `cache_database.py`.

The cache may always be lost: a database that cannot be read is set aside and a fresh one is begun. A disk that is
full or may not be written is no fault of the database's: it stays where it is, and is tried again later. Values are
sealed under their keys, so that what the disk has damaged is a miss.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import give_up, make_folder, set_aside
from firstline_core.storage.seals import ChecksumSeal, Seal
from firstline_core.telemetry.logs import logger
from firstline_edge.cache_database import REFUSED, UNREADABLE, Database

log = logger(__name__)

_EXPIRED_AT_ONCE, _LEARNED_AT_ONCE = 100, 300
_RETRY_S = 60.0
_ROUNDING_S = 1.0
# All this is on the event loop, so a disk that took longer is left alone for so many times as long: reads miss, and
# what is put waits. It costs a twentieth of the time at most, where a thread would cost each lookup more than its read.
_SLOW_S, _REST_TIMES = 0.01, 20


_CHECKSUM = ChecksumSeal()

Value = bytes | Callable[[], bytes]


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
        self._rests_until_s = 0.0
        self.problem = ""
        self.damage = ""
        self._cache = self._open()

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The value and the seconds that it has left to live."""
        if (cache := self._cache) is None and (cache := self._opened()) is None:
            return None
        began_s = self._clock.monotonic_s()
        try:
            found = cache.get(key, at_rest=began_s < self._rests_until_s)
        except REFUSED as error:
            self._failed(error)
            return None
        finally:
            self._took_since(began_s)
        if found is None:
            return None
        value, expires_s = found
        left_s = expires_s - time.time()
        # From the future, by a clock that was set back since: how old it is cannot be known, until that time has come.
        if not 0 < left_s <= self._ttl_s + _ROUNDING_S:
            return None
        try:
            if not isinstance(value, bytes):
                raise IntegrityError("It is not what this agent writes.")
            return self._seal.open(value, key), left_s
        except IntegrityError as error:
            log.warning("removed a cache entry that cannot be read", error=error.message)
            self._delete(cache, key)
            return None

    def put(self, key: bytes, value: Value) -> None:
        """Stores a value, at the latest when the cache is closed; the oldest entries make room.

        Args:
            key: replaces what is there.
            value: or what makes it, for when it is written.
        """
        if (cache := self._cache) is None and (cache := self._opened()) is None:
            return
        began_s = self._clock.monotonic_s()
        if not cache.put(key, value, time.time() + self._ttl_s, began_s, at_rest=began_s < self._rests_until_s):
            return
        try:
            cache.commit()
            self.problem = ""
        except REFUSED as error:
            self._failed(error)
        finally:
            self._took_since(began_s)

    def expire(self) -> bool:
        """Removes a few of those that have lived their time, which would otherwise wait for room to be needed.

        Meanwhile it learns which keys there are, so that it need not be asked for the others.

        Returns:
            Whether there may be more. There may be a hundred thousand after days without power: nobody should wait
            for all of them at once.
        """
        cache = self._opened()
        began_s = self._clock.monotonic_s()
        if cache is None or began_s < self._rests_until_s:
            return False
        try:
            more = cache.expire_some(_EXPIRED_AT_ONCE) == _EXPIRED_AT_ONCE
            return cache.learn_some(_LEARNED_AT_ONCE) or more
        except REFUSED as error:
            self._failed(error)
            return False
        finally:
            self._took_since(began_s)

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

    def _sealed(self, value: Value, key: bytes) -> bytes:
        return self._seal.close(value if isinstance(value, bytes) else value(), key)

    def _delete(self, cache: Database[Value], key: bytes) -> None:
        try:
            cache.delete(key)
        except REFUSED as error:
            self._failed(error)

    def _took_since(self, began_s: float) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - began_s > _SLOW_S:
            self._rests_until_s = now_s + _REST_TIMES * (now_s - began_s)

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

    def _opened(self) -> Database[Value] | None:
        """The database, opened again where that failed a while ago; None while it cannot be."""
        if self._cache is None and self._clock.monotonic_s() >= self._retry_at_s:
            self._cache = self._open()
            if self._cache is not None:
                log.info("the cache on disk can be used again", path=str(self._directory))
        return self._cache

    def _open(self, damaged: str = "") -> Database[Value] | None:
        try:
            if damaged:
                self._set_aside(damaged)
            make_folder(self._directory)
            cache = self._open_whole()
        except REFUSED as error:
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._refused(error)
            return None
        self.problem = ""
        return cache

    def _open_whole(self) -> Database[Value]:
        cache = None
        try:
            cache = Database(self._directory, self._limit_bytes, self._sealed)
            cache.check()  # a database that can be opened may still not be writable or whole
            return cache
        except UNREADABLE as error:
            if cache is not None:
                cache.close()
            if _heals(error):
                raise
            self._set_aside(str(error))
            make_folder(self._directory)
            return Database(self._directory, self._limit_bytes, self._sealed)

    def _set_aside(self, why: str) -> None:
        aside = set_aside(self._directory)
        self.damage = f"It could not be read ({why}), and was set aside as {aside.name}; an empty one was begun."
        log.warning("the cache on disk cannot be read; starting empty", moved_to=str(aside), error=why)

    def _close(self) -> None:
        if self._cache is not None:
            with contextlib.suppress(*REFUSED):
                self._cache.commit()
            self._cache.close()


def _heals(error: Exception) -> bool:
    """Whether the trouble is the disk's or another process's, and the database itself may be well.

    Of SQLite's operational errors the plain SQLITE_ERROR alone is about what the database holds: a table or a column
    that is not there.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF != sqlite3.SQLITE_ERROR
