"""One thread that writes the result cache's file, in groups, so that nobody waits for the disk.

A result is small and a commit is not: alone it would write seven pages. So results wait in memory for others, and are
read from there until the disk has them; a power cut costs the last few, and flash memory is spared (`make wear`). One
group at a time is on its way to the disk, and the next one gathers meanwhile.

What never gets there, for the disk refuses it or is too slow, leaves no older value of its key behind: that is a miss
from then on, and goes with the next group. Only a power cut before that brings it back.
"""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Generic, TypeVar

from firstline_core.telemetry.logs import logger
from firstline_edge.cache.outdated import Outdated

log = logger(__name__)

PAGE_BYTES = 4096
REFUSED = (sqlite3.Error, OSError)
"""What is raised where the disk does not do as it is told."""

Value = TypeVar("Value")

# So many share a commit, and none waits longer for others than until the next one after so long.
_GROUP_PUTS, _GROUP_S = 64, 60.0
_WAITING_LIMIT = 1024  # while the disk is slow
_PUT = "INSERT OR REPLACE INTO results (key, value, expires_s) VALUES (?, ?, ?)"
_OLDEST = "DELETE FROM results WHERE rowid IN (SELECT rowid FROM results ORDER BY rowid LIMIT ?)"
_EXPIRED = (
    "DELETE FROM results WHERE rowid IN (SELECT rowid FROM results WHERE expires_s < ? ORDER BY expires_s LIMIT ?)"
)


class Writer(Generic[Value]):
    """For one thread, which waits for the disk in `close` alone. The first put goes alone, to see what the disk does.

    Args:
        connection: its own from now on.
        limit_bytes: of the file; the oldest entries make room.
        write: makes of a value and its key what the file is to hold; called by the writing thread, too.
        may_hold: whether the file may hold anything under a key.

    Attributes:
        outcome: of the group that is on its way to the disk: how many entries it removed; None where there is none.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        limit_bytes: int,
        write: Callable[[Value, bytes], bytes],
        may_hold: Callable[[bytes], bool],
    ) -> None:
        self._connection = connection
        self._limit_pages = limit_bytes // PAGE_BYTES
        self._write = write
        self._may_hold = may_hold
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cache-writer")
        self._waiting: dict[bytes, tuple[Value, float]] = {}
        self._group_limit = 1
        self._due_s = 0.0
        self._leaving: dict[bytes, tuple[Value, float]] = {}
        self.outcome: Future[int] | None = None
        self._outdated = Outdated()
        self._removing = Outdated()  # by the group on its way
        self._sweep_limit = 0  # of the next group
        self._sweeping_limit = 0  # of the one on its way
        self._swept: bool | None = None  # whether the last sweep left nothing; None where `sweep` told that

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """What the file is to hold under the key, and when that ends by the wall's clock; None once it may hold it."""
        found = self._waiting.get(key) or self._leaving.get(key)
        return None if found is None else (self._write(found[0], key), found[1])

    def outdated(self, key: bytes) -> bool:
        """Whether what the file holds under the key is not to be told, where `get` knows nothing."""
        return key in self._outdated or key in self._removing

    def remove(self, key: bytes) -> None:
        """Has the file hold nothing under a key, with the next group."""
        self._outdated.add((key,))

    def put(self, key: bytes, value: Value, expires_s: float, now_s: float) -> None:
        """Has the file hold a value.

        Args:
            key: replaces what is there.
            value: forgotten where the disk refuses it, or too much waits for a slow one.
            expires_s: by the wall's clock.
            now_s: on the monotonic clock.
        """
        if not self._waiting:
            self._due_s = now_s + _GROUP_S
        self._waiting.pop(key, None)  # it is among the newest now
        self._waiting[key] = (value, expires_s)
        if self.outcome is None and (len(self._waiting) >= self._group_limit or now_s >= self._due_s):
            self._begin()
        elif len(self._waiting) > _WAITING_LIMIT:
            self._drop(next(iter(self._waiting)))

    def sweep(self, limit: int) -> bool:
        """Has what waits written and what has ended removed, no more than `limit`; whether to come again soon."""
        swept, self._swept = self._swept, None
        if swept:
            return False
        if not self._sweeping_limit:  # else one is on its way
            self._sweep_limit = limit
        if self.outcome is None:
            self._begin()
        return True

    @property
    def ended(self) -> bool:
        """Whether a group has ended, of which `settle` says what became."""
        return self.outcome is not None and self.outcome.done()

    def settle(self) -> Iterable[bytes]:
        """The keys of the group that has ended, which the file holds now; the next one follows, where it is complete.

        Raises:
            sqlite3.Error, OSError: the disk refuses it; it is forgotten, and the next one put tries alone.
        """
        group, error = self._ended_group()
        if error is not None:
            self._group_limit = 1
            raise error
        if group:
            self._group_limit = _GROUP_PUTS
        if len(self._waiting) >= self._group_limit:
            self._begin()
        return group

    def forget(self) -> None:
        """What waits need not be written."""
        self._waiting.clear()
        self._outdated = Outdated()

    def close(self) -> None:
        """Writes what waits, and lets go of the file; calling it twice is harmless."""
        self._thread.shutdown()
        self._ended_group()
        waiting, self._waiting = self._waiting, {}
        outdated, self._outdated = self._outdated, Outdated()
        try:
            if waiting or outdated:
                self._commit(list(waiting.items()), outdated, 0)
        except REFUSED as error:
            log.warning("the disk refuses the latest results", results=len(waiting), error=str(error))
        finally:
            self._connection.close()

    def _begin(self) -> None:
        self._leaving, self._waiting = self._waiting, {}
        self._removing, self._outdated = self._outdated, Outdated()
        self._sweeping_limit, self._sweep_limit = self._sweep_limit, 0
        self.outcome = self._thread.submit(
            self._commit, list(self._leaving.items()), self._removing, self._sweeping_limit
        )

    def _ended_group(self) -> tuple[Iterable[bytes], BaseException | None]:
        """The keys of the group that has ended, where there is one, and what the disk said against it."""
        if self.outcome is None:
            return (), None
        group, outcome, sweeping_limit = self._leaving, self.outcome, self._sweeping_limit
        removing, self._removing = self._removing, Outdated()
        self._leaving, self.outcome, self._sweeping_limit = {}, None, 0
        error = outcome.exception()
        if sweeping_limit:
            self._swept = error is not None or outcome.result() < sweeping_limit
        if error is not None:
            self._outdated.merge(removing)
            self._outdated.add(filter(self._may_hold, group))
        return group, error

    def _drop(self, key: bytes) -> None:
        """Forgets what waits under a key, and whatever came before it."""
        del self._waiting[key]
        if self._leaving.pop(key, None) is not None or self._may_hold(key):
            self._outdated.add((key,))

    def _commit(self, group: Sequence[tuple[bytes, tuple[Value, float]]], outdated: Outdated, sweep_limit: int) -> int:
        """Has the disk take a group, and removes what is outdated or has ended; how many of the latter that were."""
        rows = [(key, self._write(value, key), expires_s) for key, (value, expires_s) in group]
        # Newest first, for there may be more than the file has room for.
        pages = list(accumulate(2 + len(written) // PAGE_BYTES for _, written, _ in reversed(rows)))
        fit = bisect_right(pages, self._limit_pages)
        left_out, rows = rows[: len(rows) - fit], rows[len(rows) - fit :]
        gone = Outdated()
        gone.merge(outdated)
        gone.add(key for key, _, _ in left_out)
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            gone.remove_from(self._connection)
            if rows:
                self._make_room(pages[fit - 1], fit)
                self._connection.executemany(_PUT, rows)
            return self._connection.execute(_EXPIRED, (time.time(), sweep_limit)).rowcount if sweep_limit else 0

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
