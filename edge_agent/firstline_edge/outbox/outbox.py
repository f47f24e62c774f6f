"""The durable outbox: promises of corrections, and the answers that ended them.

A promise is on the disk when `put` returns, and is never evicted: a full outbox refuses new ones. The package's
docstring names the modules for tables, ages and recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeVar

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError, FirstlineError, QueueFullError, RequestError
from firstline_core.storage.files import DAMAGED, erase
from firstline_core.storage.seals import ChecksumSeal, Seal
from firstline_core.types import InferResponse, Privacy
from firstline_edge.outbox import answers, promises
from firstline_edge.outbox.completions import Completions
from firstline_edge.outbox.database import (
    Database,
    MakeWriter,
    Totals,
    Transaction,
    Writer,
    is_full,
    make_writer,
    newest_rows,
)
from firstline_edge.outbox.item import (
    OutboxItem,
    StoredItem,
    expire,
    pack,
    pack_response,
    seal_answer,
)
from firstline_edge.outbox.reader import OutboxReader
from firstline_edge.outbox.recovery import open_or_recover
from firstline_edge.outbox.restamping import Restamping
from firstline_edge.outbox.timeline import Timeline
from firstline_edge.settings.settings import OutboxSection

__all__ = ["Outbox", "OutboxItem"]

_T = TypeVar("_T")

_DEFAULTS = OutboxSection()
_CHECKSUM = ChecksumSeal()


class Outbox:
    """Promises and answers in one SQLite file.

    Everything may be awaited by many tasks at once. A cancelled `put` may still have been stored.

    Args:
        path: of the database; its folder is made private. One process at a time: `state.py` holds the lock.
        limits: how much is stored, and how long.
        announcing: whether answers are announced, and marked once they were.
        endings: wakes callers that wait for a promise to end; None if there are no such callers.
        seal: closes the bodies, and opens them again.
        clock: for ages.
        writer: makes the group-commit writer.

    Raises:
        ConfigError: a newer version wrote it.
        CapacityError: the disk refuses.
    """

    _reading: OutboxReader
    _database: Database
    _writer: Writer
    _restamping: Restamping

    def __init__(
        self,
        path: Path,
        limits: OutboxSection = _DEFAULTS,
        *,
        announcing: bool = False,
        endings: Completions | None = None,
        seal: Seal = _CHECKSUM,
        clock: Clock = SYSTEM_CLOCK,
        writer: MakeWriter = make_writer,
    ) -> None:
        self._path = path
        self._limits = limits
        self._seal = seal
        self._announcing = announcing
        self._endings = endings if endings is not None else Completions()
        self._pending = asyncio.Event()
        self._arrival = asyncio.Event()
        self._to_announce = asyncio.Event()
        self._to_announce.set()  # what an earlier process left
        self._ages = Timeline(clock)
        self._make_writer = writer
        self._open()

    @property
    def depth(self) -> int:
        """Number of promises that wait."""
        return self._database.totals.items

    @property
    def size_bytes(self) -> int:
        """Size of the waiting promises in bytes."""
        return self._database.totals.item_bytes

    @property
    def damage(self) -> str:
        """Describes damage to stored records, in sentences; "" if none is known."""
        count = len(self._reading.unreadable)
        lost = f"{count} records could not be read, and were given up." if count else ""
        return " ".join(filter(None, (self._damage, lost)))

    async def put(self, item: OutboxItem) -> None:
        """Stores a promise; returns once it is on the disk. The same request again changes nothing.

        Raises:
            QueueFullError: a limit is reached; nothing was stored and nothing evicted.
            CapacityError: the disk refuses.
            RequestError: the request is `local_only`.
        """
        request_id = item.request.request_id
        if item.request.privacy is Privacy.LOCAL_ONLY:
            raise RequestError(f"Request {request_id} is local_only and must not be queued.")
        self._restamping.look()
        created_wall_s = self._ages.wall_s()
        stored = pack(item, created_wall_s, self._seal)
        known = request_id in self._ages

        def insert(transaction: Transaction) -> bool | QueueFullError:
            return promises.insert(
                transaction.connection,
                transaction.totals,
                stored,
                created_wall_s,
                limit_items=self._limits.limit_items,
                limit_bytes=self._limits.limit_bytes,
            )

        def settle(done: asyncio.Future[bool]) -> None:
            if not done.cancelled() and done.exception() is None and done.result():
                self._arrival.set()
                self._arrival = asyncio.Event()
            elif not known:
                self._ages.forget(request_id)

        done = self._submit(insert)
        self._ages.start(request_id)
        done.add_done_callback(settle)
        await asyncio.shield(done)

    def arrival(self) -> asyncio.Event:
        """Set when the next promise is on the disk."""
        return self._arrival

    async def pending(
        self,
        limit: int,
        *,
        besides: Collection[str] = (),
        besides_models: Collection[tuple[str, str]] = (),
        besides_asked: bool = False,
    ) -> list[OutboxItem]:
        """Returns the oldest promises.

        Args:
            limit: of promises.
            besides: ids to skip.
            besides_models: names and versions to skip.
            besides_asked: whether to skip promises whose request the gateway received before.

        Raises:
            CapacityError: the disk refuses.
        """
        return await self._readable(
            partial(
                promises.oldest,
                limit=limit,
                besides=besides,
                besides_models=besides_models,
                besides_asked=besides_asked,
            )
        )

    async def overdue(self, age_s: float, limit: int) -> list[OutboxItem]:
        """Returns promises that are at least `age_s` old, oldest first, at most `limit`. Call it every `LOOK_EVERY_S`.

        Raises:
            CapacityError: the disk refuses.
        """
        self._restamping.look()
        request_ids = self._ages.over(age_s, limit)
        if not request_ids:
            return []
        return await self._readable(partial(promises.by_id, request_ids=request_ids))

    async def finish(self, request_id: str, final: InferResponse) -> None:
        """Stores the answer and deletes the promise, both or neither. Does nothing if there is no such promise.

        Raises:
            CapacityError: the disk refuses.
        """
        self._restamping.look()
        now_wall_s = self._ages.wall_s()
        encoded = pack_response(final)

        def move(transaction: Transaction) -> bool:
            connection, totals = transaction.connection, transaction.totals
            principal = promises.delete(connection, totals, request_id)
            if principal is None:
                return False
            answers.keep(
                connection,
                totals,
                seal_answer(encoded, request_id, principal, now_wall_s, self._seal),
                request_id=request_id,
                principal=principal,
                wall_s=now_wall_s,
                announced=not self._announcing,
            )
            self._evict(connection, totals, now_wall_s)
            return True

        try:
            ended = await self._write(move)
        finally:
            self._to_announce.set()
        self._ages.forget(request_id)
        if ended:
            self._endings.tell(request_id, final)

    async def answer(self, request_id: str, principal: str) -> InferResponse:
        """See `OutboxReader.answer`."""
        return await self._reading.answer(request_id, principal)

    async def wait_unannounced(self) -> None:
        """Returns once an answer may be still to be announced."""
        await self._to_announce.wait()

    async def unannounced(self, limit: int) -> list[tuple[str, InferResponse]]:
        """Returns ids and answers that are still to be announced, oldest first, at most `limit`.

        Raises:
            CapacityError: the disk refuses.
        """
        self._to_announce.clear()
        try:
            found, lost = await self._reading.unannounced(limit)
        except BaseException:
            self._to_announce.set()
            raise
        if found or lost:
            self._to_announce.set()
        if lost:
            await self.note_announced(lost)
        return found

    async def note_announced(self, request_ids: Collection[str]) -> None:
        """Marks answers as announced, on the disk.

        Raises:
            CapacityError: the disk refuses.
        """
        await self._write(lambda transaction: answers.note_announced(transaction.connection, request_ids))

    async def forget_old(self) -> None:
        """Deletes answers that are too old and need not be announced. Storing an answer does so too.

        Raises:
            CapacityError: the disk refuses.
        """
        self._restamping.look()
        now_wall_s = self._ages.wall_s()
        await self._write(lambda transaction: self._evict(transaction.connection, transaction.totals, now_wall_s))

    async def purge(self) -> None:
        """Deletes all promises and answers, and leaves no byte of them in a file.

        Raises:
            CapacityError: the disk refuses.
        """

        def forget(transaction: Transaction) -> list[str]:
            connection, totals = transaction.connection, transaction.totals
            connection.execute("PRAGMA secure_delete = ON")
            ended = [request_id for (request_id,) in connection.execute("DELETE FROM items RETURNING request_id")]
            connection.execute("DELETE FROM answers")
            connection.execute("PRAGMA secure_delete = FAST")
            totals.items = totals.item_bytes = totals.answers = totals.answer_bytes = 0
            return ended

        try:
            for request_id in await self._write(forget):
                self._ages.forget(request_id)
                self._endings.tell(request_id, None)
            await asyncio.shield(
                asyncio.wrap_future(self._writer.submit_then(lambda _: None, lambda _: self._database.compact()))
            )
        except CapacityError as error:
            if not (is_full(error.__cause__) or self._writer.closed):  # a disk without room has none for zeros either
                raise
            await self._begin_anew()
        await asyncio.to_thread(erase, self._path.with_name(self._path.name + DAMAGED))
        self._damage = ""
        self._reading.unreadable.clear()

    def age_s(self, item: OutboxItem) -> float:
        """The age of a promise in seconds."""
        return self._ages.of(item.request.request_id)

    def oldest_age_s(self) -> float:
        """The age of the oldest promise in seconds; 0 if there are none."""
        return self._ages.oldest_s()

    async def wait_pending(self) -> None:
        """Returns once there is a promise."""
        await self._pending.wait()

    def close(self) -> None:
        """Closes the outbox after everything that was put is on the disk; the file can then be opened again."""
        self._writer.close()
        self._database.close()
        self._reading.close()

    def _open(self) -> None:
        with contextlib.ExitStack() as undo:
            opened = open_or_recover(self._path, self._seal)
            self._damage = opened.damage
            undo.callback(opened.connection.close)
            undo.callback(opened.mark.close)
            try:
                self._reading = undo.enter_context(contextlib.closing(OutboxReader(self._path, self._seal)))
                totals = self._learn(opened.connection)
            except sqlite3.Error as error:
                raise CapacityError(f"The outbox {self._path} cannot be read: {error}. Is the disk failing?") from error
            undo.pop_all()
        self._database = Database(opened.connection, totals, opened.mark)
        self._writer = self._make_writer(self._database)
        self._restamping = Restamping(self._ages, self._seal, self._writer)

    async def _begin_anew(self) -> None:
        """Erases the files and makes new ones in the room that they leave; until then the outbox refuses.

        Raises:
            OSError, CapacityError: the disk refuses, and some files may not be erased.
        """
        self._writer.end()
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._database.close)
        await asyncio.to_thread(self._reading.close)
        try:
            await asyncio.to_thread(erase, self._path)
        finally:
            ended = self._ages.ids()
            self._damage = "Its files were erased, and there was no room for new ones: free space, and purge again."
            await asyncio.to_thread(self._open)
            self._note_depth()
            for request_id in ended.difference(self._ages.ids()):
                self._endings.tell(request_id, None)

    async def _readable(
        self, query: Callable[[sqlite3.Connection], list[tuple[StoredItem, float]]]
    ) -> list[OutboxItem]:
        found, lost = await self._reading.items(query)
        for stored in lost:
            await self._give_up(stored)
        return found

    async def _give_up(self, stored: StoredItem) -> None:
        """Ends a promise whose request cannot be read, so that it does not block those behind it."""
        request_id, provisional = stored.request_id, self._reading.provisional(stored)
        if provisional is not None:
            await self.finish(request_id, expire(provisional))
            return
        await self._write(lambda transaction: promises.delete(transaction.connection, transaction.totals, request_id))
        self._ages.forget(request_id)
        self._endings.tell(request_id, None)

    def _evict(self, connection: sqlite3.Connection, totals: Totals, now_wall_s: float) -> None:
        if self._restamping.settled:  # else there will be a next time
            oldest_s = now_wall_s - self._limits.answers_age_s
            answers.forget_old(connection, totals, oldest_s, also_unannounced=not self._announcing)
        answers.make_room(connection, totals, self._limits.answers_limit_bytes)

    def _submit(self, operation: Callable[[Transaction], _T | FirstlineError]) -> asyncio.Future[_T]:
        """Queues an operation, which is committed even if its caller is cancelled."""
        done = asyncio.wrap_future(self._writer.submit(operation))
        done.add_done_callback(lambda _: self._note_depth())
        return done

    async def _write(self, operation: Callable[[Transaction], _T | FirstlineError]) -> _T:
        """Returns an operation's result once it is on the disk."""
        return await asyncio.shield(self._submit(operation))

    def _note_depth(self) -> None:
        if self.depth:
            self._pending.set()
        else:
            self._pending.clear()

    def _learn(self, writer: sqlite3.Connection) -> Totals:
        """Counts the records of earlier processes, and reads their ages."""
        promises.correct_sizes(writer)
        answers.correct_sizes(writer)
        one = self._reading.connection.execute
        items, item_bytes = one("SELECT count(*), coalesce(sum(size_bytes), 0) FROM items").fetchone()
        ended, ended_bytes = one("SELECT count(*), coalesce(sum(size_bytes), 0) FROM answers").fetchone()
        newest = "SELECT max(created_wall_s) AS s FROM items UNION ALL SELECT max(stored_wall_s) FROM answers"
        (seen_s,) = one(f"SELECT max(s) FROM ({newest})").fetchone()  # noqa: S608
        created = one("SELECT request_id, created_wall_s FROM items ORDER BY created_wall_s, sequence").fetchall()
        self._ages.learn(float(seen_s or 0.0), created)
        if created:
            self._pending.set()
        return Totals(items, item_bytes, ended, ended_bytes, newest_rows(writer))
