"""Corrects the times of records that this process stored while the wall clock was behind.

Otherwise the next process would take promises and answers of a minute ago for days old. The seals cover the times, so
records are sealed again: a few at a time, the latest first, so that other writes need not wait for long. After a kill
or on a full disk, the remaining records keep their old times; the next look tries a full disk again.
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
    """Corrects some records of a table; returns the rest of the jump."""

    def __call__(self, connection: sqlite3.Connection, *, jump: ClockJump, seal: Seal) -> ClockJump | None: ...


class Restamping:
    """Corrects the times in one database. Every method but `settled` is called on the event loop.

    Args:
        ages: the timeline.
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
        """Whether all records on the disk have the right times."""
        return not self._owed

    def look(self) -> None:
        """Starts to correct times if the wall clock was set ahead; continues where the disk refused."""
        jump = self._ages.look()
        if jump is not None:
            log.info("wall clock set ahead", by_s=round(jump.by_s))
            self._owed += ((promises.restamp, jump), (answers.restamp, jump))
        self._go_on()

    def _go_on(self) -> None:
        if self._owed and not self._busy and not self._writer.closed:
            restamp, jump = self._owed[0]
            self._busy = True

            def step(transaction: Transaction) -> ClockJump | None:
                return restamp(transaction.connection, jump=jump, seal=self._seal)

            asyncio.wrap_future(self._writer.submit(step)).add_done_callback(self._note)

    def _note(self, done: asyncio.Future[ClockJump | None]) -> None:
        self._busy = False
        if done.cancelled() or done.exception() is not None:  # the writer has logged the reason
            return
        rest = done.result()
        if rest is None:
            self._owed.popleft()
        else:
            self._owed[0] = (self._owed[0][0], rest)
        self._go_on()
