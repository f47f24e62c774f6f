"""The cache's part on disk: diskcache, with everything that unpickles taken out. Bytes in, bytes out.

diskcache unpickles what it finds in its database and its files (CVE-2025-69872; its JSONDisk too), so whoever can
write there runs code here. `BytesDisk` stores bytes in the database only, and refuses anything else that it finds.
The cache may always be lost: a database that cannot be read is moved aside and a fresh one is begun.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any, NoReturn

import diskcache
from diskcache.core import MODE_RAW, UNKNOWN

from firstline_core.telemetry.logs import logger

_LOG = logger(__name__)

# diskcache reads its database inline on the event loop; nobody else should hold its lock for longer.
_LOCK_TIMEOUT_S = 0.05
_ITS_OWN_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
# What diskcache raises on a database that is not its own, beside sqlite3's errors.
_UNREADABLE = (sqlite3.DatabaseError, AttributeError, KeyError, TypeError, ValueError)


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

    Never raises: an entry that cannot be read or written is a miss.

    Args:
        directory: made with mode 0700; an unreadable database in it is moved to `directory` + ".broken".
        limit_bytes: of the database; the oldest entries go first.
        ttl_s: seconds that an entry lives, in wall time, for it must count across restarts.
    """

    def __init__(self, directory: Path, *, limit_bytes: int, ttl_s: float) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._ttl_s = ttl_s
        self._cache = self._open()

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The value and the seconds that it has left to live."""
        try:
            value, expires_s = self._cache.get(key, expire_time=True)
        except ForeignEntryError as error:
            _LOG.warning("removed a foreign cache entry", error=str(error))
            self._delete(key)
            return None
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            self._failed("read", error)
            return None
        if value is None:
            return None
        # A clock that was set back must not make an entry live for longer than it was given.
        left_s = self._ttl_s if expires_s is None else min(expires_s - time.time(), self._ttl_s)
        return value, left_s

    def put(self, key: bytes, value: bytes) -> None:
        """Stores a value; the oldest entries make room."""
        try:
            self._cache.set(key, value, expire=self._ttl_s)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            self._failed("write", error)

    def close(self) -> None:
        """Closes the database; calling it twice is harmless."""
        self._cache.close()

    def _delete(self, key: bytes) -> None:
        try:
            self._cache.delete(key)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            self._failed("write", error)

    def _failed(self, action: str, error: Exception) -> None:
        # A busy or full database is an OperationalError and heals by itself; a malformed one never does.
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            self._cache.close()
            self._cache = self._open()
        else:
            _LOG.warning("cannot use the cache on disk", action=action, error=str(error))

    def _open(self) -> Any:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        try:
            cache = self._open_database()
            cache.get(b"probe")
            with cache.transact():  # a database that can be read may still not be writable or whole
                pass
            return cache
        except _UNREADABLE as error:
            aside = self._directory.with_name(self._directory.name + ".broken")
            shutil.rmtree(aside, ignore_errors=True)
            self._directory.replace(aside)
            self._directory.mkdir(mode=0o700)
            _LOG.warning("the cache on disk cannot be read; starting empty", moved_to=str(aside), error=str(error))
            return self._open_database()

    def _open_database(self) -> Any:
        return diskcache.Cache(
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
