"""A bounded map from bytes to bytes on the disk, for results that outlive the process.

The map may always be lost: a database that cannot be read is set aside, and an empty one is started. A disk that is
full or may not be written does not mean that the database is damaged: the database stays, and is tried again later.
Values are sealed with their keys, so a value that the disk has damaged is a miss. Most inputs are new: a `KeyFilter`
of the stored keys saves the read of the disk that would not find them.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import diskcache
from diskcache.core import MODE_RAW
from msgspec import Struct

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import make_folder, set_aside
from firstline_core.storage.seals import Seal
from firstline_core.telemetry.logs import logger
from firstline_edge.state import is_refusal

log = logger(__name__)

_CHECKSUM = Seal()
# Small devices: one megabyte of page cache, and no mapping that a failing SD card turns into SIGBUS. Entries are
# evicted after each commit (`_write`): diskcache evicts within the transaction, in which the file does not shrink.
_SETTINGS = {
    "eviction_policy": "least-recently-stored",
    "cull_limit": 0,
    "sqlite_auto_vacuum": 1,  # FULL
    "sqlite_cache_size": 256,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 1,  # NORMAL
}
# Another process may lock the database. Reads are on the event loop: they miss at once, and the writer waits longer.
_READ_TIMEOUT_S, _WRITE_TIMEOUT_S = 0.01, 1.0
# Number of results that share a commit, and seconds after which the next result starts a commit with those that wait.
# A commit of one result writes seven pages, so shared commits spare flash memory.
_GROUP_PUTS, _GROUP_S = 64, 60.0
_GROUP_BYTES = 4 << 20  # in memory; large results do not wait for others
_WAITING_LIMIT, _WAITING_BYTES = 1024, 16 << 20  # while the disk is slow
_STALE_LIMIT = 16_384
_EVERY_KEY = b""  # among stale keys, it means all keys; no result has it
_RETRY_S = 60.0
_ROUNDING_S = 1.0
# Duration of a read from which the disk is slow, and the pause after it as a multiple of that duration: until then all
# reads miss. Reads are on the event loop, and so block it for a twentieth of the time at most. A thread would cost each
# lookup more than its read.
_SLOW_S, _REST_TIMES = 0.01, 20
# The least capacity of the filter of stored keys, which takes 16 KiB. A larger cache has one for twice its entries.
_FILTERED_KEYS = 8192
_BITS_PER_KEY = 16


class Encodable(Protocol):
    """A value that becomes bytes when the disk needs them; it must not change."""

    def encode(self) -> bytes: ...


Value = bytes | Encodable


class Entry(Struct, frozen=True):
    """A value, when it expires in wall time, and its memory while it waits to be written."""

    value: Value
    expires_s: float
    size_bytes: int = 0


Changes = dict[bytes, Entry | None]


class DiskCache:
    """A bounded map from bytes to bytes with a time to live, for one process and one thread.

    Never raises: an entry that cannot be read or written is a miss, and while the disk refuses, all are. Only `close`
    waits for the disk. A power cut loses the last group.

    Args:
        directory: made with mode 0700; set aside as a whole if its database cannot be read.
        limit_bytes: of the database; the oldest entries are evicted first.
        ttl_s: seconds that an entry lives, in wall time, which also counts across restarts.
        seal: closes the values.
        clock: says when to try again.

    Attributes:
        damage: describes the damage to an earlier database, in a sentence; "" if there was none.
    """

    def __init__(
        self, directory: Path, *, limit_bytes: int, ttl_s: float, seal: Seal = _CHECKSUM, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._ttl_s = ttl_s
        self._seal = seal
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cache-writer")
        # What is to change on the disk, the latest first. None removes the entry of a key.
        self._waiting: dict[bytes, Entry] = {}  # oldest first
        self._waiting_bytes = 0
        self._stale: Changes = {}  # the disk may hold older values of these keys: newer ones were never written
        self._group: Changes = {}  # that is being written
        self._writing: Future[None] | None = None
        self._group_limit = 1  # the first put goes alone, to see what the disk does
        self._due_s = math.inf  # from then on, a put or an hourly `expire` writes the next group, however small it is
        self._closed = False
        self._retry_at_s = self._rests_until_s = 0.0
        self._problem = self.damage = ""
        self._cache: diskcache.Cache | None = None
        self._stored: KeyFilter | None = None  # None while it is not known which keys are on the disk
        self._open()

    @property
    def problem(self) -> str:
        """Why nothing is stored at the moment, in a sentence; "" if there is no problem."""
        self._settle()
        return self._problem

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The value and the seconds that it has left to live."""
        entry = self._latest(key) if self._cache is not None or self._opened_again() else None
        if entry is None:
            return None
        left_s = entry.expires_s - time.time()
        # An entry from the future was stored before the clock was set back: its age is unknown until that time comes.
        return (_bytes_of(entry.value), left_s) if 0 < left_s <= self._ttl_s + _ROUNDING_S else None

    def put(self, key: bytes, value: Value, size_bytes: int = 0) -> None:
        """Stores a value, at the latest when the cache is closed; replaces the value under the key.

        Args:
            key: not empty.
            value: an `Encodable` is encoded in the writing thread, so that no request waits for it.
            size_bytes: memory of the value until it is written; 0 if that is little.
        """
        self._settle()
        if self._cache is None and not self._opened_again():
            return
        if not self._waiting:
            self._due_s = min(self._due_s, self._clock.monotonic_s() + _GROUP_S)
        if (replaced := self._waiting.pop(key, None)) is not None:  # its key is among the newest now
            self._waiting_bytes -= replaced.size_bytes
        self._waiting[key] = Entry(value, time.time() + self._ttl_s, size_bytes)
        self._waiting_bytes += size_bytes
        self._begin_if_due()
        while len(self._waiting) > _WAITING_LIMIT or self._waiting_bytes > _WAITING_BYTES:
            oldest = next(iter(self._waiting))
            self._mark_stale([oldest])
            self._waiting_bytes -= self._waiting.pop(oldest).size_bytes

    def expire(self) -> None:
        """Writes what waits and removes expired entries, both in the background."""
        self._settle()
        if self._cache is not None or self._opened_again():
            self._due_s = -math.inf
            self._begin_if_due()

    def close(self) -> None:
        """Writes what waits and closes the database; calling it twice is harmless."""
        self._closed = True
        if self._writing is not None:
            wait([self._writing])
            self._settle()
        if self._waiting or self._stale:
            self.expire()
        if self._writing is not None and (error := self._writing.exception()) is not None:
            results = sum(entry is not None for entry in self._group.values())
            log.warning("cached results not written", results=results, error=str(_cause(error)))
        self._shut()
        self._thread.shutdown()

    def _begin_if_due(self) -> None:
        """Starts to write what waits if it is complete or has waited long enough, unless a group is being written."""
        complete = len(self._waiting) >= self._group_limit or self._waiting_bytes >= _GROUP_BYTES
        due = complete or self._clock.monotonic_s() >= self._due_s
        if due and self._cache is not None and self._writing is None:
            self._group = {**self._stale, **self._waiting}
            self._stale, self._waiting, self._waiting_bytes, self._due_s = {}, {}, 0, math.inf
            self._writing = self._thread.submit(self._write, self._cache, self._group)

    def _write(self, cache: diskcache.Cache, group: Changes) -> None:
        """Commits a group, then evicts what has expired or does not fit; in the writing thread."""
        waits_until_s = time.monotonic() + _WRITE_TIMEOUT_S
        while True:
            try:
                with cache.transact():
                    if _EVERY_KEY in group:
                        cache.clear()
                    for key, entry in group.items():
                        value = _bytes_of(entry.value) if entry is not None else b""
                        if entry is None or len(value) > self._limit_bytes // 2:
                            cache.delete(key)
                        else:
                            cache.set(key, self._seal.close(value, key), expire=entry.expires_s - time.time())
                if self._stored is not None:
                    for key in group:
                        self._stored.add(key)
                    if self._stored.room < 0:  # it seems to hold more keys than were stored, of which many were evicted
                        self._read_keys(cache)
                while cache.expire():  # of entries that expire at the same moment, one call removes 100
                    pass
                cache.cull()
                return
            except BaseException as error:
                cache.close()  # after a commit that failed the transaction is still open
                if not isinstance(error, diskcache.Timeout) or time.monotonic() >= waits_until_s:
                    raise

    def _read_keys(self, cache: diskcache.Cache) -> None:
        """Reads which keys are on the disk, in the writing thread. After an error, every lookup reads the disk."""
        self._stored = None
        try:
            path = Path(cache.directory) / diskcache.core.DBNAME
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
                # Both from the index of the keys, which is much smaller than the table. The number that diskcache
                # stores may be damaged.
                (count,) = database.execute("SELECT COUNT(*) FROM Cache").fetchone()
                stored = KeyFilter(max(_FILTERED_KEYS, 2 * count))
                for (key,) in database.execute("SELECT key FROM Cache"):
                    stored.add(key)
                    if self._closed or cache is not self._cache:
                        return
        except Exception as error:  # noqa: BLE001 (reading and writing find out whether the database is damaged)
            log.info("keys of the disk cache not read", error=str(_cause(error)))
        else:
            self._stored = stored

    def _settle(self) -> None:
        """Takes note of the outcome of a written group, if it is known; starts the next group if it is complete."""
        if self._writing is None or not self._writing.done():
            return
        error, group = self._writing.exception(), self._group
        self._writing, self._group = None, {}
        if error is not None:
            self._group_limit = 1
            stored = self._stored
            self._mark_stale(key for key in group if stored is None or key in stored or key == _EVERY_KEY)
            self._fail(error)
        elif any(group.values()):  # any disk can write nothing
            self._group_limit = _GROUP_PUTS
            self._problem = ""
        self._begin_if_due()

    def _mark_stale(self, keys: Iterable[bytes]) -> None:
        """Notes that the disk may hold older values of these keys; of all keys, if too many are to be remembered."""
        self._stale.update(dict.fromkeys(keys))
        if len(self._stale) > _STALE_LIMIT or _EVERY_KEY in self._stale:
            self._stale = {_EVERY_KEY: None}

    def _latest(self, key: bytes) -> Entry | None:
        """Returns the entry that was put last; None if that one was dropped or refused."""
        for changes in (self._waiting, self._stale, self._group):
            if key in changes or _EVERY_KEY in changes:
                return changes.get(key)
        stored = self._stored  # the writing thread may replace it at any moment
        return self._read(key) if stored is None or key in stored else None

    def _read(self, key: bytes) -> Entry | None:
        """Returns the entry on disk; None if there is none, if reading fails, or during the pause after a slow read."""
        began_s = self._clock.monotonic_s()
        if began_s < self._rests_until_s or self._cache is None:
            return None
        try:
            sealed, expires_s = self._cache.get(key, expire_time=True)
            if not isinstance(expires_s, float):  # None without an entry; anything else was not written here
                return None
            if sealed is None:
                raise IntegrityError("It is not what this agent writes.")
            return Entry(self._seal.open(sealed, key), expires_s)
        except IntegrityError as error:
            log.warning("unreadable cache entry removed", error=error.message)
            self._mark_stale([key])
            return None
        except Exception as error:  # noqa: BLE001 (whatever reading raises is a miss)
            self._fail(error)
            return None
        finally:
            now_s = self._clock.monotonic_s()
            if now_s - began_s > _SLOW_S:
                self._rests_until_s = now_s + _REST_TIMES * (now_s - began_s)

    def _opened_again(self) -> bool:
        """Opens the database if that failed a while ago; returns whether it is open."""
        if not self._closed and self._clock.monotonic_s() >= self._retry_at_s:
            self._open()
            if self._cache is not None:
                log.info("disk cache restored", path=str(self._directory))
        return self._cache is not None

    def _open(self, damage: BaseException | None = None) -> None:
        """Opens the database, an empty one if the old one is damaged; if the disk refuses, there is none for now."""
        try:
            if damage is not None:
                why, aside = _cause(damage), set_aside(self._directory)
                self.damage = f"It could not be read ({why}) and was set aside as {aside.name}; an empty one was begun."
                log.warning("disk cache unreadable; starting empty", moved_to=str(aside), error=str(why))
            make_folder(self._directory)
            self._cache = _opened(self._directory, self._limit_bytes)
            self._problem = ""
        except Exception as error:  # noqa: BLE001 (no request may fail because of the cache)
            if damage is None and not is_refusal(_cause(error)):
                self._open(damage=error)
            else:
                self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
                self._refuse(_cause(error))
        else:
            self._thread.submit(self._read_keys, self._cache)

    def _fail(self, error: BaseException) -> None:
        """Sets a damaged database aside and starts an empty one; reports a disk that refuses."""
        if is_refusal(_cause(error)):
            self._refuse(_cause(error))
        else:
            self._shut()
            self._open(damage=error)

    def _refuse(self, why: BaseException) -> None:
        """Logs once, however many entries it concerns."""
        if not self._problem:
            log.warning("disk cache unavailable", path=str(self._directory), error=str(why))
        self._problem = f"The disk refuses the result cache: {why}. Free space, or correct who may write there."

    def _shut(self) -> None:
        """Waits for the write in progress, drops waiting values, and closes the database in both threads."""
        cache, self._cache = self._cache, None
        if cache is not None:
            self._thread.submit(cache.close).result()
            cache.close()
        self._writing = self._stored = None
        for changes in (self._waiting, self._stale, self._group):
            changes.clear()
        self._waiting_bytes = 0


class KeyFilter:
    """A Bloom filter: a set of keys that needs two to four bytes for each key of its capacity (Bloom, CACM 1970).

    It has every key that was added. Once it is full, it also seems to have up to 1.4 % of all other keys. One thread
    may add keys while another one looks them up.

    Args:
        capacity: number of keys, at least 1.

    Attributes:
        room: number of keys until the filter is full; below 0, it seems to have more of the other keys.
    """

    def __init__(self, capacity: int) -> None:
        self.room = capacity
        size_bits = 1 << (_BITS_PER_KEY * capacity - 1).bit_length()
        self._bits = bytearray(size_bits // 8)
        self._mask = size_bits - 1

    def add(self, key: bytes) -> None:
        """Adds a key."""
        self.room -= 1
        for position in self._positions(key):
            self._bits[position >> 3] |= 1 << (position & 7)

    def __contains__(self, key: bytes) -> bool:
        first, second = self._positions(key)
        bits = self._bits
        return bool(bits[first >> 3] >> (first & 7) & 1 and bits[second >> 3] >> (second & 7) & 1)

    def _positions(self, key: bytes) -> tuple[int, int]:
        digest = hash(key)  # 64 bits, of which each half is one hash
        return digest & self._mask, digest >> 32 & self._mask


def _bytes_of(value: Value) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _opened(directory: Path, limit_bytes: int) -> diskcache.Cache:
    """Opens or makes the database; raises whatever SQLite or diskcache raise if it is damaged or refused."""
    cache = diskcache.Cache(
        str(directory), timeout=_READ_TIMEOUT_S, disk=BytesDisk, size_limit=limit_bytes, **_SETTINGS
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


def _cause(error: BaseException) -> BaseException:
    """SQLite's first error: diskcache hides it behind a Timeout, or behind an error of its rollback."""
    first = error.__context__
    hidden = isinstance(error, diskcache.Timeout | sqlite3.OperationalError) and isinstance(first, sqlite3.Error)
    return _cause(first) if first is not None and hidden else error


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no type information
    """Stores bytes, and reads nothing but bytes.

    diskcache's own `Disk` and `JSONDisk` unpickle whatever the database says is a pickle, so that a file in the cache
    directory could run code (CVE-2025-69872). This class overrides every method that pickles or unpickles, or that
    opens or removes a file named by the database.
    """

    def put(self, key: bytes) -> tuple[bytes, bool]:
        """Returns the key as the database stores it, and that it is raw."""
        return key, True

    def get(self, key: Any, raw: bool) -> bytes:
        """Returns a stored key.

        Raises:
            TypeError: the database holds a key of another kind.
        """
        if not raw or not isinstance(key, bytes):
            raise TypeError("the key is not bytes")
        return key

    def store(self, value: bytes, read: bool, key: Any = diskcache.UNKNOWN) -> tuple[int, int, None, bytes]:
        """Returns size outside the database, mode, file name and value, as the database stores them.

        Raises:
            TypeError: the value is not bytes.
        """
        if read or not isinstance(value, bytes):
            raise TypeError("the value is not bytes")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes | None:
        """Returns a stored value; None for anything that `store` did not write."""
        return value if mode == MODE_RAW and filename is None and not read and isinstance(value, bytes) else None

    def remove(self, file_path: str) -> None:
        """Removes nothing: no entry has a file, so a file name in the database is not this agent's."""
