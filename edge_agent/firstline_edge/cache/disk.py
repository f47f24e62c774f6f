"""The cache's part on disk, bytes in and bytes out; the database itself stands in `database.py`.

The cache may always be lost: a database that cannot be read is set aside and a fresh one is begun. A disk that is
full or may not be written is no fault of the database's: it stays where it is, and is tried again later. Values are
sealed under their keys, so that what the disk has damaged is a miss.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import give_up, make_folder, set_aside
from firstline_core.storage.seals import ChecksumSeal, Seal
from firstline_core.telemetry.logs import logger
from firstline_edge.cache.database import UNREADABLE, Database
from firstline_edge.cache.writer import REFUSED

log = logger(__name__)

_EXPIRED_AT_ONCE, _LEARNED_AT_ONCE = 100, 300
_RETRY_S = 60.0
_ROUNDING_S = 1.0
# Reads are on the event loop, so a disk that took longer is not asked for so many times as long: they miss. That costs
# a twentieth of the time at most, where a thread would cost each lookup more than its read.
_SLOW_S, _REST_TIMES = 0.01, 20

_CHECKSUM = ChecksumSeal()

Value = bytes | Callable[[], bytes]
About = TypeVar("About")
Found = TypeVar("Found")


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
        self._problem = ""
        self.damage = ""
        self._cache = self._open()

    @property
    def problem(self) -> str:
        """Why nothing is kept at the moment, in a sentence; "" while all is well."""
        self._settled()
        return self._problem

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The value and the seconds that it has left to live."""
        if (cache := self._cache) is None and (cache := self._opened()) is None:
            return None
        found: tuple[object, float] | None = cache.writer.get(key)
        if found is None and cache.filter.passes(key):
            found = self._asked(cache.get, key)
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
            cache.writer.remove(key)
            return None

    def put(self, key: bytes, value: Value) -> None:
        """Stores a value, at the latest when the cache is closed; the oldest entries make room.

        Args:
            key: replaces what is there.
            value: or what makes it, for when it is written, by another thread.
        """
        cache = self._cache
        if cache is None or cache.writer.outcome is not None:
            cache = self._settled()
        if cache is not None:
            cache.writer.put(key, value, time.time() + self._ttl_s, self._clock.monotonic_s())

    def expire(self) -> bool:
        """Removes a few of those that have lived their time, which would otherwise wait for room to be needed.

        Meanwhile it learns which keys there are, so that it need not be asked for the others.

        Returns:
            Whether there may be more. There may be a hundred thousand after days without power: nobody should wait
            for all of them at once.
        """
        cache = self._settled()
        if cache is None:
            return False
        more = cache.writer.sweep(_EXPIRED_AT_ONCE)
        return self._asked(cache.learn_some, _LEARNED_AT_ONCE) or more

    def clear(self) -> list[Path]:
        """Begins anew; returns what is still to be erased, see `storage.files.give_up`.

        Raises:
            OSError: the disk refuses.
        """
        try:
            if self._cache is not None:
                self._cache.writer.forget()
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

    def _asked(self, disk: Callable[[About], Found], about: About) -> Found | None:
        """What the disk says, read on the event loop; None where it refuses, or is left alone."""
        began_s = self._clock.monotonic_s()
        if began_s < self._rests_until_s:
            return None
        try:
            return disk(about)
        except REFUSED as error:
            self._failed(error)
            return None
        finally:
            now_s = self._clock.monotonic_s()
            if now_s - began_s > _SLOW_S:
                self._rests_until_s = now_s + _REST_TIMES * (now_s - began_s)

    def _settled(self) -> Database[Value] | None:
        """The database, where it can be used, once it is known what became of what was written."""
        if (cache := self._cache) is None:
            return self._opened()
        if cache.writer.ended:
            try:
                if cache.settle():  # else nothing was written, which any disk can do
                    self._problem = ""
            except REFUSED as error:
                self._failed(error)
        return self._cache

    def _failed(self, error: Exception) -> None:
        if isinstance(error, sqlite3.DatabaseError) and not _heals(error):
            if self._cache is not None:
                self._cache.writer.forget()  # it is set aside as a whole
            self._close()
            self._cache = self._open(damaged=str(error))
        else:
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        """Said once, however many entries it concerns."""
        if not self._problem:
            log.warning("cannot use the cache on disk", path=str(self._directory), error=str(error))
        self._problem = f"The disk refuses the result cache: {error}. Free space, or correct who may write there."

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
        self._problem = ""
        return cache

    def _open_whole(self) -> Database[Value]:
        try:
            return Database(self._directory, self._limit_bytes, self._sealed)
        except UNREADABLE as error:
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
            self._cache.close()
            self._cache = None


def _heals(error: Exception) -> bool:
    """Whether the trouble is the disk's or another process's, and the database itself may be well.

    Of SQLite's operational errors the plain SQLITE_ERROR alone is about what the database holds: a table or a column
    that is not there.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF != sqlite3.SQLITE_ERROR
