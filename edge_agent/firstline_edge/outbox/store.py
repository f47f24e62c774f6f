"""The durable outbox: promises of corrections, and the answers that kept them.

What `put` has returned for is on the disk and is never evicted; a full outbox refuses instead. Only answers, which
are final, make room for newer ones.

Ages. An item's age is measured with the monotonic clock while this process runs; what an earlier one left starts
with the age that wall time gives it, and one from the future counts as new. Wall time never goes back below the
newest that this database has seen, so that a device that boots in 1970 does not make its new items look half a
century old once its clock is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError, FirstlineError, QueueFullError, RequestError, UnknownAnswerError
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Privacy
from firstline_edge.outbox import schema
from firstline_edge.outbox.item import OutboxItem, StoredItem, expire, pack, pack_response, unpack, unpack_response
from firstline_edge.outbox.writer import GroupWriter, Totals

__all__ = ["Outbox", "OutboxItem"]

log = logger(__name__)

_T = TypeVar("_T")

# A clock that says less was never set; a fresh database has nothing better to go by.
_EARLIEST_PLAUSIBLE_S = 1_767_225_600.0  # 2026-01-01
_COLUMNS = "request_id, principal, model, version, rows, request, request_header, provisional, provisional_header"


class Outbox:
    """Promises and answers in one SQLite file.

    Everything may be awaited by many tasks at once. A cancelled `put` may still have been stored.

    Args:
        path: of the database; its folder is made private.
        limit_items: promises at most.
        limit_bytes: of all promises together.
        answer_limit_bytes: of all kept answers together; the oldest make room.
        answer_max_age_s: after which an answer is no longer kept.
        clock: for ages.

    Raises:
        ConfigError: another agent uses it, or a newer version wrote it.
        CapacityError: the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit_items: int = 10_000,
        limit_bytes: int = 256 * 1024 * 1024,
        answer_limit_bytes: int = 64 * 1024 * 1024,
        answer_max_age_s: float = 7 * 86_400.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._limit_items = limit_items
        self._limit_bytes = limit_bytes
        self._answer_limit_bytes = answer_limit_bytes
        self._answer_max_age_s = answer_max_age_s
        self._clock = clock
        self._pending = asyncio.Event()
        self._floor_s = _EARLIEST_PLAUSIBLE_S
        self._born_s: dict[str, float] = {}
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(schema.lock(path))
            connection = undo.enter_context(contextlib.closing(schema.open_or_replace(path, clock.wall_s())))
            try:
                self._reader = undo.enter_context(contextlib.closing(schema.open_reader(path)))
                totals = self._learn()
            except sqlite3.Error as error:
                raise CapacityError(f"The outbox {path} cannot be read: {error}. Is the disk failing?") from error
            undo.pop_all()
        self._writer = GroupWriter(connection, totals, self._note_depth)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="outbox-reader")

    @property
    def depth(self) -> int:
        """Promises that wait."""
        return self._writer.totals.items

    @property
    def size_bytes(self) -> int:
        """Bytes of those."""
        return self._writer.totals.item_bytes

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
        stored = pack(item)
        created_wall_s = self._plausible_wall_s(item.created_wall_s)

        def insert(connection: sqlite3.Connection, totals: Totals) -> bool:
            known = connection.execute(
                "SELECT 1 FROM items WHERE request_id = ?1 UNION ALL SELECT 1 FROM answers WHERE request_id = ?1",
                (request_id,),
            ).fetchone()
            if known is not None:
                return False
            if totals.items >= self._limit_items:
                raise QueueFullError(f"The outbox holds {totals.items} requests, its limit.")
            if totals.item_bytes + stored.size_bytes > self._limit_bytes:
                raise QueueFullError(
                    f"The outbox holds {totals.item_bytes} of {self._limit_bytes} bytes; {stored.size_bytes} more "
                    "do not fit."
                )
            connection.execute(
                f"INSERT INTO items ({_COLUMNS}, created_wall_s, size_bytes) VALUES (?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
                (*_values(stored), created_wall_s, stored.size_bytes),
            )
            totals.items += 1
            totals.item_bytes += stored.size_bytes
            return True

        known = request_id in self._born_s
        self._born_s.setdefault(request_id, self._clock.monotonic_s())
        inserted = False
        try:
            inserted = await self._writer.run(insert)
        except asyncio.CancelledError:
            inserted = True  # or will be
            raise
        finally:
            if not inserted and not known:
                del self._born_s[request_id]

    async def pending(self, limit: int) -> list[OutboxItem]:
        """The oldest promises, at most `limit`.

        Raises:
            CapacityError: the disk refuses.
        """
        rows = await self._read(
            lambda reader: reader.execute(
                f"SELECT {_COLUMNS}, created_wall_s FROM items ORDER BY sequence LIMIT ?",  # noqa: S608
                (limit,),
            ).fetchall()
        )
        found = []
        for *columns, created_wall_s in rows:
            stored = StoredItem(*columns)
            try:
                found.append(unpack(stored, created_wall_s))
            except FirstlineError as error:
                log.error("outbox item unreadable", request_id=stored.request_id, why=error.message)
                await self._give_up(stored)
        return found

    async def finish(self, request_id: str, final: InferResponse) -> None:
        """Stores the answer and removes the promise, both or neither. Does nothing without a promise.

        Raises:
            CapacityError: the disk refuses.
        """
        encoded = pack_response(final)
        size_bytes = len(encoded.body)
        now_wall_s = self._plausible_wall_s(self._clock.wall_s())

        def move(connection: sqlite3.Connection, totals: Totals) -> None:
            principal = _delete(connection, totals, request_id=request_id)
            if principal is None:
                return
            connection.execute(
                "INSERT INTO answers (request_id, principal, stored_wall_s, response, response_header, size_bytes) "
                "VALUES (?,?,?,?,?,?)",
                (request_id, principal, now_wall_s, encoded.body, encoded.header_length, size_bytes),
            )
            totals.answers += 1
            totals.answer_bytes += size_bytes
            self._evict_answers(connection, totals, now_wall_s)

        await self._writer.run(move)
        self._born_s.pop(request_id, None)

    async def answer(self, request_id: str, principal: str) -> InferResponse:
        """The answer by its id: the final or expired one, or the provisional one while its promise stands.

        Raises:
            UnknownAnswerError: none is kept, or it is not this principal's.
            CapacityError: the disk refuses.
        """

        def find(reader: sqlite3.Connection) -> tuple[bytes, int | None] | None:
            # In this order: a promise is only ever moved to the answers, so it cannot be missed in between.
            for query in (
                "SELECT provisional, provisional_header FROM items WHERE request_id = ? AND principal = ?",
                "SELECT response, response_header FROM answers WHERE request_id = ? AND principal = ?",
            ):
                row: tuple[bytes, int | None] | None = reader.execute(query, (request_id, principal)).fetchone()
                if row is not None:
                    return row
            return None

        row = await self._read(find)
        if row is None:
            raise UnknownAnswerError(f"No answer is kept under the id {request_id[:64]!r} for this caller.")
        return unpack_response(*row)

    def age_s(self, item: OutboxItem) -> float:
        """How long ago the promise was made."""
        now_s = self._clock.monotonic_s()
        return max(0.0, now_s - self._born_s.get(item.request.request_id, now_s))

    async def wait_pending(self) -> None:
        """Returns once there is a promise; at once if so already."""
        await self._pending.wait()

    def close(self) -> None:
        """Ends after what was put before is on the disk; the file can then be opened again."""
        self._writer.close()
        self._reading.shutdown(wait=True)
        self._reader.close()
        self._lock.close()

    async def _give_up(self, stored: StoredItem) -> None:
        """Ends a promise whose request nobody could ever send, so that it does not block those behind it."""
        try:
            provisional = unpack_response(stored.provisional, stored.provisional_header)
        except FirstlineError:
            await self._writer.run(partial(_delete, request_id=stored.request_id))
            self._born_s.pop(stored.request_id, None)
        else:
            await self.finish(stored.request_id, expire(provisional))

    def _note_depth(self) -> None:
        if self.depth:
            self._pending.set()
        else:
            self._pending.clear()

    def _learn(self) -> Totals:
        """Takes stock of what an earlier process left."""
        one = self._reader.execute
        items = one("SELECT count(*), coalesce(sum(size_bytes), 0) FROM items").fetchone()
        answers = one("SELECT count(*), coalesce(sum(size_bytes), 0) FROM answers").fetchone()
        newest = "SELECT max(created_wall_s) AS s FROM items UNION ALL SELECT max(stored_wall_s) FROM answers"
        (seen_s,) = one(f"SELECT max(s) FROM ({newest})").fetchone()  # noqa: S608
        self._floor_s = max(_EARLIEST_PLAUSIBLE_S, float(seen_s or 0.0))
        now_s, wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        created = one("SELECT request_id, created_wall_s FROM items").fetchall()
        self._born_s = {request_id: now_s - max(0.0, wall_s - then_s) for request_id, then_s in created}
        if created:
            self._pending.set()
        return Totals(*items, *answers)

    def _plausible_wall_s(self, wall_s: float) -> float:
        return max(wall_s, self._floor_s) if wall_s < _EARLIEST_PLAUSIBLE_S else wall_s

    def _evict_answers(self, connection: sqlite3.Connection, totals: Totals, now_wall_s: float) -> None:
        oldest_s = now_wall_s - self._answer_max_age_s
        count, size_bytes = connection.execute(
            "SELECT count(*), coalesce(sum(size_bytes), 0) FROM answers WHERE stored_wall_s < ?", (oldest_s,)
        ).fetchone()
        if count:
            connection.execute("DELETE FROM answers WHERE stored_wall_s < ?", (oldest_s,))
            totals.answers -= count
            totals.answer_bytes -= size_bytes
        # The newest always stays: a promise was kept by it just now.
        while totals.answer_bytes > self._answer_limit_bytes and totals.answers > 1:
            sequence, size_bytes = connection.execute(
                "SELECT sequence, size_bytes FROM answers ORDER BY sequence LIMIT 1"
            ).fetchone()
            connection.execute("DELETE FROM answers WHERE sequence = ?", (sequence,))
            totals.answers -= 1
            totals.answer_bytes -= size_bytes

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reading, query, self._reader)
        except sqlite3.Error as error:
            raise CapacityError(f"The outbox could not be read: {error}. Is the disk failing?") from error


def _values(stored: StoredItem) -> tuple[object, ...]:
    return tuple(getattr(stored, name) for name in _COLUMNS.split(", "))


def _delete(connection: sqlite3.Connection, totals: Totals, *, request_id: str) -> str | None:
    """Removes a promise; returns whose it was, None where there was none."""
    found = connection.execute("SELECT principal, size_bytes FROM items WHERE request_id = ?", (request_id,)).fetchone()
    if found is None:
        return None
    connection.execute("DELETE FROM items WHERE request_id = ?", (request_id,))
    totals.items -= 1
    totals.item_bytes -= found[1]
    principal: str = found[0]
    return principal
