"""How old promises are, on a device whose wall clock cannot be trusted.

Each process has one timeline: the wall clock at its start, advanced by the monotonic clock. It begins after the newest
stored time, so a device that boots in 1970, or with the time at which it was switched off, continues from there. A
clock that is set back changes nothing. A clock that is set ahead shows how long the device was off: the timeline jumps,
records of earlier processes become older by the jump, and records of this process do not.

The stored times of this process's records are then corrected (`Restamping`). Otherwise the next process would take
promises and answers of a minute ago for days old.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S, Clock
from firstline_core.errors import IntegrityError
from firstline_core.protocol.oip import Encoded
from firstline_core.storage.seals import Seal
from firstline_core.telemetry.logs import logger
from firstline_edge.outbox.database import Transaction, Writer
from firstline_edge.outbox.item import StoredItem, restamp_answer, restamp_request
from firstline_edge.outbox.tables import ITEM_COLUMNS

log = logger(__name__)

CHECK_CLOCK_EVERY_S = 20.0
"""How often `check_clock` must be called at least while a promise waits."""
LEAST_JUMP_S = 60.0
"""Smaller corrections of the wall clock are ignored: clocks are corrected by less all the time."""

_STEP_ROWS = 32
"""Records that are sealed again in one commit, which other writes wait for."""
_APART_S = 0.001
"""The gap between the times of earlier processes and of this one, which tells their records apart."""


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The times that this process stored from `from_s` to `until_s`, both included, are too early by `by_s`."""

    from_s: float
    until_s: float
    by_s: float


class Timeline:
    """When each promise was made, oldest first.

    Args:
        clock: its monotonic and wall time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.load(0.0, ())

    def load(self, newest_wall_s: float, created: Iterable[tuple[str, float]]) -> None:
        """Reads the ages of the promises of earlier processes.

        Args:
            newest_wall_s: the newest stored time.
            created: request ids and their wall times, oldest first.
        """
        self._began_s = self._clock.monotonic_s()
        # A clock with an earlier time was never set.
        self._began_wall_s = max(EARLIEST_PLAUSIBLE_WALL_S, newest_wall_s + _APART_S, self._clock.wall_s())
        self._started_s = {request_id: self._began_s - (self._began_wall_s - then_s) for request_id, then_s in created}

    def wall_s(self) -> float:
        """The present time on this process's timeline."""
        return self._began_wall_s + (self._clock.monotonic_s() - self._began_s)

    def check_clock(self) -> ClockJump | None:
        """Compares the timeline with the wall clock; returns the correction if the clock was set ahead, else None."""
        until_s = self.wall_s()
        by_s = self._clock.wall_s() - until_s
        if by_s <= LEAST_JUMP_S:
            return None
        jump = ClockJump(self._began_wall_s, until_s, by_s)
        self._began_wall_s += by_s
        self._started_s = {
            request_id: started_s - by_s if started_s < self._began_s else started_s
            for request_id, started_s in self._started_s.items()
        }
        return jump

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._started_s

    def ids(self) -> set[str]:
        """The ids of all promises."""
        return set(self._started_s)

    def start(self, request_id: str) -> None:
        """Adds a promise that is made now, unless it is there already."""
        self._started_s.setdefault(request_id, self._clock.monotonic_s())

    def remove(self, request_id: str) -> None:
        self._started_s.pop(request_id, None)

    def of(self, request_id: str) -> float:
        """A promise's age in seconds; 0 if there is none."""
        now_s = self._clock.monotonic_s()
        return max(0.0, now_s - self._started_s.get(request_id, now_s))

    def oldest_s(self) -> float:
        """The age of the oldest promise in seconds; 0 if there are no promises."""
        return self.of(next(iter(self._started_s), ""))

    def over(self, age_s: float, limit: int) -> list[str]:
        """Returns the ids of promises that are at least `age_s` old, oldest first, at most `limit`."""
        latest_s = self._clock.monotonic_s() - age_s
        old = takewhile(lambda born: born[1] <= latest_s, self._started_s.items())
        return [request_id for request_id, _ in islice(old, limit)]


class Restamping:
    """Corrects stored times after a clock jump. The seals cover the times, so records are sealed again.

    It takes a few records at a time, the latest first, so that other writes need not wait for long. After a kill or on
    a full disk, the remaining records keep their old times; the next `check_clock` tries a full disk again. Every
    method but `is_complete` is called on the event loop.

    Args:
        ages: the timeline.
        seal: opens the records, and closes them again.
        writer: commits the steps.
    """

    def __init__(self, ages: Timeline, seal: Seal, writer: Writer) -> None:
        self._ages = ages
        self._seal = seal
        self._writer = writer
        self._remaining: deque[tuple[str, ClockJump]] = deque()  # tables, and what to correct in them
        self._busy = False

    @property
    def is_complete(self) -> bool:
        """Whether all records on the disk have the right times."""
        return not self._remaining

    def check_clock(self) -> None:
        """Starts to correct times if the wall clock was set ahead; continues where the disk refused."""
        jump = self._ages.check_clock()
        if jump is not None:
            log.info("wall clock set ahead", by_s=round(jump.by_s))
            self._remaining += (("items", jump), ("answers", jump))
        self._continue()

    def _continue(self) -> None:
        if self._remaining and not self._busy and not self._writer.closed:
            table, jump = self._remaining[0]
            self._busy = True

            def step(transaction: Transaction) -> ClockJump | None:
                restamp = _restamp_items if table == "items" else _restamp_answers
                return restamp(transaction.connection, jump, self._seal)

            asyncio.wrap_future(self._writer.submit(step)).add_done_callback(self._step_done)

    def _step_done(self, done: asyncio.Future[ClockJump | None]) -> None:
        self._busy = False
        if done.cancelled() or done.exception() is not None:  # the writer has logged the reason
            return
        rest = done.result()
        if rest is None:
            self._remaining.popleft()
        else:
            self._remaining[0] = (self._remaining[0][0], rest)
        self._continue()


def _restamp_items(connection: sqlite3.Connection, jump: ClockJump, seal: Seal) -> ClockJump | None:
    """Corrects the times of the latest promises; returns the rest of the jump, or None."""
    select = f"SELECT {ITEM_COLUMNS}, created_wall_s FROM items WHERE created_wall_s"  # noqa: S608
    rows, rest = _latest(connection, jump, select)
    for *columns, before_s in rows:
        stored, after_s = StoredItem(*columns), before_s + jump.by_s
        try:
            request = restamp_request(stored, seal, before_s=before_s, after_s=after_s)
        except IntegrityError:  # damaged: reading it reports that
            continue
        connection.execute(
            "UPDATE items SET created_wall_s = ?, request = ? WHERE request_id = ?",
            (after_s, request, stored.request_id),
        )
    return rest


def _restamp_answers(connection: sqlite3.Connection, jump: ClockJump, seal: Seal) -> ClockJump | None:
    """Corrects the times of the latest answers; returns the rest of the jump, or None."""
    select = "SELECT request_id, principal, response, response_header, stored_wall_s FROM answers WHERE stored_wall_s"
    rows, rest = _latest(connection, jump, select)
    for request_id, principal, body, header, before_s in rows:
        after_s = before_s + jump.by_s
        try:
            encoded = restamp_answer(
                Encoded(body, header), request_id, principal, seal, before_s=before_s, after_s=after_s
            )
        except IntegrityError:  # damaged: reading it reports that
            continue
        connection.execute(
            "UPDATE answers SET stored_wall_s = ?, response = ? WHERE request_id = ?",
            (after_s, encoded.body, request_id),
        )
    return rest


def _latest(
    connection: sqlite3.Connection, jump: ClockJump, select: str
) -> tuple[list[tuple[Any, ...]], ClockJump | None]:
    """Returns the latest rows within a jump, at least `_STEP_ROWS` if there are so many, and the rest of the jump.

    Args:
        connection: in a transaction.
        jump: within which the rows were stored.
        select: ends with the name of the column of times, which is also the last column.
    """
    latest = connection.execute(
        f"{select} BETWEEN ? AND ? ORDER BY {select.rpartition(' ')[2]} DESC LIMIT ?",
        (jump.from_s, jump.until_s, _STEP_ROWS),
    ).fetchall()
    if not latest:
        return [], None
    least_s = latest[-1][-1]
    rows = connection.execute(f"{select} BETWEEN ? AND ?", (least_s, jump.until_s)).fetchall()
    return rows, replace(jump, until_s=math.nextafter(least_s, 0.0))
