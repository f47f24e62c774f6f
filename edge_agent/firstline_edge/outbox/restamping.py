"""Gives what this process stored by a clock that was behind the times that it would have had by the right one.

Otherwise the next process took promises and answers of a minute ago for days old. Times lie under the records' seals,
which are closed anew: a few records at a time, the latest first, so that nobody waits for long who has something to
store meanwhile. What a kill or a full disk leaves undone is as it was; a full disk is tried again at the next look.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from typing import Protocol

from firstline_core.storage.seals import Seal
from firstline_core.telemetry.logs import logger
from firstline_edge.outbox import answers, promises
from firstline_edge.outbox.database import Transaction, Writer
from firstline_edge.outbox.timeline import ClockJump, Timeline

log = logger(__name__)


class _Restamp(Protocol):
    """One step of a leap in a table; returns what is left of it."""

    def __call__(self, connection: sqlite3.Connection, *, leap: ClockJump, seal: Seal) -> ClockJump | None: ...


class Restamping:
    """Of one database; everything but `settled` is called on the event loop.

    Args:
        ages: whose timeline it is.
        seal: opens the records, and closes them again.
        writer: commits the steps.
    """

    def __init__(self, ages: Timeline, seal: Seal, writer: Writer) -> None:
        self._ages = ages
        self._seal = seal
        self._writer = writer
        self._owed: deque[tuple[_Restamp, ClockJump]] = deque()
        self._busy = False

    @property
    def settled(self) -> bool:
        """Whether all that is on the disk has the times that it should have."""
        return not self._owed

    def look(self) -> None:
        """Begins where the wall clock was set ahead, and goes on where the disk refused."""
        leap = self._ages.look()
        if leap is not None:
            log.info("wall clock set ahead", by_s=round(leap.by_s))
            self._owed += ((promises.restamp, leap), (answers.restamp, leap))
        self._go_on()

    def _go_on(self) -> None:
        if self._owed and not self._busy and not self._writer.closed:
            restamp, leap = self._owed[0]
            self._busy = True

            def step(transaction: Transaction) -> ClockJump | None:
                return restamp(transaction.connection, leap=leap, seal=self._seal)

            asyncio.wrap_future(self._writer.submit(step)).add_done_callback(self._note)

    def _note(self, done: asyncio.Future[ClockJump | None]) -> None:
        self._busy = False
        if done.cancelled() or done.exception() is not None:  # the writer has said why
            return
        rest = done.result()
        if rest is None:
            self._owed.popleft()
        else:
            self._owed[0] = (self._owed[0][0], rest)
        self._go_on()
