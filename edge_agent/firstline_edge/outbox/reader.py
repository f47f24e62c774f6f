"""Reads promises and answers from the outbox, over a connection of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from firstline_core.errors import CapacityError, FirstlineError, UnknownAnswerError
from firstline_core.storage.seals import Seal
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse
from firstline_edge.outbox import answers, promises
from firstline_edge.outbox.database import open_reader
from firstline_edge.outbox.item import OutboxItem, StoredItem, unpack, unpack_answer, unpack_provisional

log = logger(__name__)

_T = TypeVar("_T")


class OutboxReader:
    """Reads concurrently with the writer, and never waits for it.

    Args:
        path: of the database.
        seal: opens the records.

    Attributes:
        connection: for counting the records before anything else is read.
        unreadable: ids of records that were found damaged so far.

    Raises:
        sqlite3.Error: the disk refuses.
    """

    def __init__(self, path: Path, seal: Seal) -> None:
        self._seal = seal
        self.connection = open_reader(path)
        self.unreadable: set[str] = set()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox-reader")

    async def items(
        self, query: Callable[[sqlite3.Connection], list[tuple[StoredItem, float]]]
    ) -> tuple[list[OutboxItem], list[StoredItem]]:
        """Returns the promises that a query finds, and those whose request cannot be read.

        Raises:
            CapacityError: the disk refuses.
        """
        found, lost = [], []
        for stored, created_wall_s in await self._read(query):
            try:
                found.append(unpack(stored, created_wall_s, self._seal))
            except FirstlineError as error:
                self._note("outbox item unreadable", stored.request_id, error)
                lost.append(stored)
        return found, lost

    def provisional(self, stored: StoredItem) -> InferResponse | None:
        """Returns the provisional answer of a promise; None if it cannot be read either."""
        columns = (stored.provisional, stored.provisional_header, stored.request_id, stored.principal)
        try:
            return unpack_provisional(*columns, self._seal)
        except FirstlineError:
            return None

    async def answer(self, request_id: str, principal: str) -> InferResponse:
        """The answer by its id: the provisional one while its promise stands, or the final or expired one.

        Raises:
            UnknownAnswerError: none is kept, it cannot be read, or it is not this principal's.
            CapacityError: the disk refuses.
        """
        # In this order: a promise is only ever moved to the answers, so it cannot be missed in between.
        promised = await self._read(partial(promises.find_provisional, request_id=request_id, principal=principal))
        kept = None
        if promised is None:
            kept = await self._read(partial(answers.find, request_id=request_id, principal=principal))
        try:
            if promised is not None:
                return unpack_provisional(*promised, request_id, principal, self._seal)
            if kept is not None:
                return unpack_answer(*kept, request_id, principal, self._seal)
        except FirstlineError as error:
            self.unreadable.add(request_id)
            raise UnknownAnswerError(
                f"The answer under the id {request_id[:64]!r} cannot be given any more. {error.message}"
            ) from error
        raise UnknownAnswerError(f"No answer is kept under the id {request_id[:64]!r} for this caller.")

    async def unannounced(self, limit: int) -> tuple[list[tuple[str, InferResponse]], list[str]]:
        """Returns ids and answers that are still to be announced, oldest first, and the ids of unreadable answers.

        Raises:
            CapacityError: the disk refuses.
        """
        found, lost = [], []
        for request_id, principal, packed, wall_s in await self._read(partial(answers.unannounced, limit=limit)):
            try:
                found.append((request_id, unpack_answer(packed, wall_s, request_id, principal, self._seal)))
            except FirstlineError as error:
                self._note("outbox answer unreadable", request_id, error)
                lost.append(request_id)
        return found, lost

    def close(self) -> None:
        """Closes the connection after the reads in progress; calling it twice is harmless."""
        self._closed = True
        self._thread.shutdown(wait=True)
        self.connection.close()

    def _note(self, what: str, request_id: str, error: FirstlineError) -> None:
        log.error(what, request_id=request_id, why=error.message)
        self.unreadable.add(request_id)

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._closed:
            raise CapacityError("The outbox is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, query, self.connection)
        except sqlite3.Error as error:
            raise CapacityError(f"The outbox could not be read: {error}. Is the disk failing?") from error
