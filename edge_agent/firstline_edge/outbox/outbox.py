"""The durable outbox: promises of corrections, and the answers that ended them.

A promise is on the disk when `put` returns, and is never evicted: a full outbox refuses new ones. While the disk
refuses the file (full, read-only or gone), nothing is promised, and requests continue. The package's docstring names
the other modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    CapacityError,
    ConfigError,
    FirstlineError,
    QueueFullError,
    RequestError,
    UnknownAnswerError,
)
from firstline_core.storage.seals import Seal
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.wording import counted
from firstline_core.types import InferResponse, ModelVersion, Privacy
from firstline_core.units import HOUR_S
from firstline_edge.outbox import database
from firstline_edge.outbox.database import SQLITE_ERRORS, Database, Receiver, Transaction, Writer
from firstline_edge.outbox.item import (
    ANSWER,
    PROVISIONAL,
    OutboxItem,
    StoredItem,
    expire,
    open_answer,
    pack,
    pack_response,
    seal_answer,
    unpack,
)
from firstline_edge.outbox.recovery import open_or_recover
from firstline_edge.outbox.timeline import ClockJump, Timeline
from firstline_edge.settings.settings import EdgeSettings, OutboxSection
from firstline_edge.state import open_seal

log = logger(__name__)

__all__ = ["Completion", "Outbox", "OutboxItem", "PromiseWaiters"]

_T = TypeVar("_T")

_DEFAULTS = OutboxSection()
_RETRY_S = 30.0  # until the next try to open the file
_STORED = 64

Completion = asyncio.Future[InferResponse | None]
"""The final or expired answer of a promise, or None if the promise ended without any."""

OnDamage = Callable[[str, str, str], None]
"""Receives the request id, the model's name and its version."""


class PromiseWaiters:
    """The promises that callers wait for. A caller that comes later reads the answer from the outbox instead."""

    def __init__(self) -> None:
        self._watched: dict[str, set[Completion]] = {}

    @contextlib.contextmanager
    def watch(self, request_id: str) -> Iterator[Completion]:
        """Starts to wait; look at the outbox only after that, so that no end is missed in between."""
        completion: Completion = asyncio.get_running_loop().create_future()
        watching = self._watched.setdefault(request_id, set())
        watching.add(completion)
        try:
            yield completion
        finally:
            watching.discard(completion)
            if not watching:
                self._watched.pop(request_id, None)

    def notify(self, request_id: str, final: InferResponse | None) -> None:
        """Wakes the callers that wait for this promise, with its answer."""
        for completion in self._watched.get(request_id, ()):
            if not completion.done():
                completion.set_result(final)

    def end(self) -> None:
        """Wakes all callers without an answer, because the agent stops."""
        for request_id in self._watched:
            self.notify(request_id, None)

    def __len__(self) -> int:
        """Number of promises that callers wait for."""
        return len(self._watched)


@dataclass(eq=False)
class Outbox:
    """Promises and answers in one SQLite file, which is opened as soon as the disk permits.

    Everything may be awaited by many tasks at once. A cancelled `put` may still have been stored. While the file is not
    open, every call raises CapacityError, and `problem` says why.

    Args:
        path: of the database; its folder is made private. One process at a time: `state.py` holds the lock.
        limits: how much is stored, and how long.
        announcing: returns the receivers to which answers are announced now.
        on_damage: receives each promise that ended because its record is damaged.
        seal: returns what closes the bodies, and opens them again; raises CapacityError without its key.
        clock: for ages, and says when to try again.
        writer: makes the group-commit writer.

    Attributes:
        waiters: wakes callers that wait for a promise to end.
        stored: promises that were just stored, for their delivery.
        changed: set when a promise was stored or the file opened; the delivery clears it before it reads promises.

    Raises:
        ConfigError: a newer version wrote the file.
    """

    path: Path
    limits: OutboxSection = _DEFAULTS
    _: KW_ONLY
    announcing: Callable[[], Collection[Receiver]] = tuple
    on_damage: OnDamage = lambda _request_id, _model, _version: None
    seal: Callable[[], Seal] = Seal
    clock: Clock = SYSTEM_CLOCK
    writer: database.MakeWriter = database.make_writer
    _database: Database = field(init=False, repr=False)
    _writer: Writer = field(init=False, repr=False)
    _reader: sqlite3.Connection = field(init=False, repr=False)
    _seal: Seal = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.waiters = PromiseWaiters()
        self.stored: asyncio.Queue[OutboxItem] = asyncio.Queue(_STORED)
        self.changed = asyncio.Event()
        self._to_announce = {receiver: asyncio.Event() for receiver in Receiver}
        self._note_unannounced()  # what an earlier process left
        self._timeline = Timeline(self.clock)
        self._jumps: list[ClockJump] = []  # of the wall clock, which stored times are still to be corrected by
        self._shifting = False
        self._unreadable: set[str] = set()  # ids of damaged records
        self._damage = self._read_problem = self._unopened_problem = ""
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="outbox-reader")
        self._opening = threading.Lock()
        self._is_open = self._closed = False
        self._unopened_counts = (0, 0)
        self._try_open()

    @property
    def depth(self) -> int:
        """Number of promises that wait."""
        return self._database.totals.items if self._is_open else self._unopened_counts[0]

    @property
    def size_bytes(self) -> int:
        """Size of the waiting promises in bytes."""
        return self._database.totals.item_bytes if self._is_open else self._unopened_counts[1]

    @property
    def oldest_s(self) -> float:
        """Age of the oldest waiting promise in seconds; 0 if there are no promises."""
        return self._timeline.oldest_s()

    @property
    def damage(self) -> str:
        """Describes damage to stored records, in sentences; "" if none is known."""
        count = len(self._unreadable)
        lost = f"{counted(count, 'record')} could not be read; the agent deletes such records." if count else ""
        return " ".join(filter(None, (self._damage, lost)))

    @property
    def problem(self) -> str:
        """Why the file is not open, or refuses to be written or read now, in sentences; "" if it works."""
        if not self._is_open:
            return self._unopened_problem
        return " ".join(filter(None, (self._writer.problem, self._read_problem)))

    def check(self) -> None:
        """Raises CapacityError while the file is not open."""
        if not self._is_open:
            raise CapacityError(self._unopened_problem or "The outbox is closed.", retry_after_s=_RETRY_S)

    async def opened(self) -> None:
        """Returns once the file is open; retries until then.

        Raises:
            ConfigError: a newer version wrote it.
        """
        while not self._is_open:
            await self.clock.sleep(_RETRY_S)
            await asyncio.to_thread(self._try_open)  # which looks at the whole file, while requests go on
            self.changed.set()

    async def put(self, item: OutboxItem) -> None:
        """Stores a promise; returns once it is on the disk. The same request again changes nothing.

        Raises:
            QueueFullError: a limit is reached; nothing was stored and nothing evicted.
            CapacityError: the disk refuses.
            RequestError: the request is `local_only`.
        """
        request_id = item.request_id
        if item.request.privacy is Privacy.LOCAL_ONLY:
            raise RequestError(f"Request {request_id} is local_only and must not be queued.")
        self.check()
        self._check_clock()
        stored = pack(item, self._timeline.wall_s(), self._seal)
        existed = request_id in self._timeline

        def insert(transaction: Transaction) -> bool | QueueFullError:
            limit_items, limit_bytes = self.limits.limit_items, self.limits.limit_bytes
            return database.insert_promise(transaction, stored, limit_items=limit_items, limit_bytes=limit_bytes)

        def note_stored(done: asyncio.Future[bool]) -> None:
            if not done.cancelled() and done.exception() is None and done.result():
                self._timeline.start(request_id)  # again, if the same request was refused at the same time
                self.changed.set()
            elif not existed:
                self._timeline.remove(request_id)

        done = self._submit(insert)
        self._timeline.start(request_id)
        done.add_done_callback(note_stored)
        await asyncio.shield(done)
        if not self.stored.full():  # otherwise it is delivered in its turn
            self.stored.put_nowait(item)

    async def pending(
        self,
        limit: int,
        *,
        skip_ids: Collection[str] = (),
        skip_models: Collection[ModelVersion] = (),
        skip_reached_gateway: bool = False,
    ) -> list[OutboxItem]:
        """Returns the oldest promises; ends those whose request cannot be read.

        Args:
            limit: of promises.
            skip_ids: ids to skip.
            skip_models: names and versions to skip.
            skip_reached_gateway: whether to skip promises whose request the gateway may have received before.

        Raises:
            CapacityError: the disk refuses.
        """
        return await self._readable(
            partial(
                database.oldest_promises,
                limit=limit,
                skip_ids=skip_ids,
                skip_models=skip_models,
                skip_reached_gateway=skip_reached_gateway,
            )
        )

    async def overdue(self, age_s: float, limit: int) -> list[OutboxItem]:
        """Returns promises that are at least `age_s` old, oldest first, at most `limit`.

        Ends those whose request cannot be read. Call it every `CHECK_CLOCK_EVERY_S`.

        Raises:
            CapacityError: the disk refuses.
        """
        self._check_clock()
        request_ids = self._timeline.at_least(age_s, limit)
        if not request_ids:
            return []
        return await self._readable(partial(database.promises_by_id, request_ids=request_ids))

    async def finish(self, request_id: str, final: InferResponse) -> None:
        """Stores the answer and deletes the promise, both or neither. Does nothing if there is no such promise.

        Also deletes answers that are too old, or that exceed `answers_limit_bytes`.

        Raises:
            CapacityError: the disk refuses.
        """
        self._check_clock()
        now_wall_s = self._timeline.wall_s()
        packed = pack_response(final)

        def move(transaction: Transaction) -> bool:
            principal = database.delete_promise(transaction, request_id)
            if principal is None:
                return False
            database.insert_answer(
                transaction,
                seal_answer(packed, request_id, principal, self._seal),
                request_id=request_id,
                principal=principal,
                wall_s=now_wall_s,
                receivers=self.announcing(),
            )
            self._evict(transaction, now_wall_s)
            return True

        try:
            ended = await self._write(move)
        finally:
            self._note_unannounced()
        self._timeline.remove(request_id)
        if ended:
            self.waiters.notify(request_id, final)

    async def answer(self, request_id: str, principal: str) -> InferResponse:
        """Returns the answer by its id: the provisional one while its promise waits, or the final or expired one.

        Raises:
            UnknownAnswerError: there is none, it cannot be read, or it is not this principal's.
            CapacityError: the disk refuses.
        """
        found = await self._read(partial(database.find_answer, request_id=request_id, principal=principal))
        if found is None:
            raise UnknownAnswerError(
                f"No answer is kept under the id {request_id[:64]!r} for this caller; take the request_id of a "
                "provisional answer, with the same token."
            )
        sealed, kind = found
        try:
            return open_answer(sealed, kind, request_id, principal, self._seal)
        except FirstlineError as error:
            self._unreadable.add(request_id)
            raise UnknownAnswerError(
                f"The answer under the id {request_id[:64]!r} cannot be given any more. {error.message}"
            ) from error

    async def wait_unannounced(self, receiver: Receiver) -> None:
        """Returns once an answer may be still to be announced to a receiver."""
        await self._to_announce[receiver].wait()

    async def unannounced(self, receiver: Receiver, limit: int) -> list[tuple[str, InferResponse]]:
        """Returns ids and answers that are still to be announced to a receiver, oldest first, at most `limit`.

        Raises:
            CapacityError: the disk refuses.
        """
        to_announce = self._to_announce[receiver]
        to_announce.clear()
        answers, unreadable = [], []
        query = partial(database.unannounced_answers, receiver=receiver, limit=limit)
        try:
            for request_id, principal, sealed in await self._read(query):
                try:
                    answers.append((request_id, open_answer(sealed, ANSWER, request_id, principal, self._seal)))
                except FirstlineError as error:
                    self._report_damage("outbox answer unreadable", request_id, error)
                    unreadable.append(request_id)
        except BaseException:
            to_announce.set()
            raise
        if answers or unreadable:
            to_announce.set()
        if unreadable:
            await self.mark_announced(receiver, unreadable)
        return answers

    async def mark_announced(self, receiver: Receiver, request_ids: Collection[str]) -> None:
        """Marks answers as announced to a receiver, on the disk.

        Raises:
            CapacityError: the disk refuses.
        """
        await self._write(partial(database.mark_announced, receiver=receiver, request_ids=request_ids))

    async def delete_old_answers(self) -> None:
        """Deletes answers that are too old and need not be announced. Storing an answer does so too.

        Raises:
            CapacityError: the disk refuses.
        """
        self._check_clock()
        now_wall_s = self._timeline.wall_s()
        await self._write(partial(self._evict, now_wall_s=now_wall_s))

    def age_s(self, item: OutboxItem) -> float:
        """The age of a promise in seconds."""
        return self._timeline.age_s(item.request_id)

    def is_waiting(self, item: OutboxItem) -> bool:
        """Whether a promise has not ended yet."""
        return item.request_id in self._timeline

    async def wait_pending(self) -> None:
        """Returns once there is a promise; for the task that clears `changed`."""
        while not self.depth:
            self.changed.clear()
            await self.changed.wait()

    async def keep_expiring(self) -> None:
        """Deletes old answers every hour, also while no promise is made, until it is cancelled.

        Reads one promise too, so that `problem` is that of now: without promises nothing else reads.
        """
        while True:
            with contextlib.suppress(CapacityError):  # `problem` reports it; the next call tries again
                await self.delete_old_answers()
            with contextlib.suppress(CapacityError):
                await self.pending(1)
            await self.clock.sleep(HOUR_S)

    def close(self) -> None:
        """Closes the outbox after everything that was put is on the disk; the file can then be opened again."""
        with self._opening:
            self._closed = True
            if self._is_open:
                self._writer.close()
                self._database.close()
                self._reading.submit(self._reader.close).result()
                self._is_open = False
        self._reading.shutdown(wait=True)

    def _try_open(self) -> None:
        """Opens the file unless it is open; notes why not if the disk refuses."""
        with self._opening:
            if self._is_open or self._closed:
                return
            try:
                self._open()
            except CapacityError as error:
                if not self._unopened_problem:
                    self._unopened_counts = database.count_promises(self.path)
                    log.error("outbox unavailable; no correction promised", error=error.message)
                # An error about a setting says itself what to do; all other errors come from the disk.
                disk = (
                    "" if isinstance(error.__cause__, ConfigError) else " Free space, or correct who may write there."
                )
                self._unopened_problem = f"{error.message}{disk} Until then nothing is promised."
                return
            self._is_open = True
            if self._unopened_problem:
                log.info("outbox restored", items=self.depth)
            self._unopened_problem = ""

    def _open(self) -> None:
        with contextlib.ExitStack() as undo:
            self._seal = self.seal()
            opened = open_or_recover(self.path, self._seal, self.clock.wall_s())
            undo.callback(opened.connection.close)
            undo.callback(opened.mark.close)
            try:
                self._reader = undo.enter_context(contextlib.closing(database.open_reader(self.path)))
                newest_wall_s, created = database.read_times(opened.connection)
                totals = database.read_totals(opened.connection, opened.newest)
                # Last: the next start must report damage and missing records again if this one fails.
                if opened.newest != database.newest_rows(opened.connection):
                    database.skip_rows(opened.connection, opened.newest)
                if opened.damage:
                    database.store_damage(opened.connection, "")
            except SQLITE_ERRORS as error:
                raise CapacityError(f"The outbox {self.path} cannot be read: {error}. Is the disk failing?") from error
            undo.pop_all()
        self._damage = opened.damage
        self._database = Database(opened.connection, totals, opened.mark)
        self._timeline.load(newest_wall_s, created)
        self._writer = self.writer(self._database)

    async def _readable(self, query: Callable[[sqlite3.Connection], list[StoredItem]]) -> list[OutboxItem]:
        """Returns the promises that a query selects; those whose request cannot be read end."""
        items = []
        for stored in await self._read(query):
            try:
                items.append(unpack(stored, self._seal))
            except FirstlineError as error:
                self._report_damage("outbox item unreadable", stored.request_id, error)
                await self._give_up(stored)
        return items

    async def _give_up(self, stored: StoredItem) -> None:
        """Ends a promise whose request cannot be read, so that it does not block those behind it."""
        request_id = stored.request_id
        try:
            provisional = open_answer(stored.provisional, PROVISIONAL, request_id, stored.principal, self._seal)
        except FirstlineError:
            await self._write(partial(database.delete_promise, request_id=request_id))
            self._timeline.remove(request_id)
            self.waiters.notify(request_id, None)
        else:
            await self.finish(request_id, expire(provisional))
        self.on_damage(request_id, stored.model, stored.version)

    def _report_damage(self, event: str, request_id: str, error: FirstlineError) -> None:
        log.error(event, request_id=request_id, why=error.message)
        self._unreadable.add(request_id)

    def _check_clock(self) -> None:
        """Corrects stored times if the wall clock was set ahead; tries again where the disk refused."""
        jump = self._timeline.check_clock()
        if jump is not None:
            log.info("wall clock set ahead", by_s=round(jump.by_s))
            self._jumps.append(jump)
        if self._jumps and not self._shifting and self._is_open:
            self._shifting = True
            shift = self._writer.submit(partial(database.shift_times, jump=self._jumps[0]))
            asyncio.wrap_future(shift).add_done_callback(self._shifted)

    def _shifted(self, done: asyncio.Future[ClockJump | None]) -> None:
        self._shifting = False
        if not done.cancelled() and done.exception() is None:  # the writer has logged the reason
            remaining = done.result()
            self._jumps[:1] = [] if remaining is None else [remaining]
            self._check_clock()

    def _evict(self, transaction: Transaction, now_wall_s: float) -> None:
        if not self._jumps:  # otherwise the next call deletes old answers
            oldest_s = now_wall_s - self.limits.answers_age_s
            database.delete_old_answers(transaction, oldest_s, self.announcing())
        database.make_room_for_answers(transaction, self.limits.answers_limit_bytes)

    def _submit(self, operation: Callable[[Transaction], _T | FirstlineError]) -> asyncio.Future[_T]:
        """Queues an operation, which is committed even if its caller is cancelled."""
        self.check()
        return asyncio.wrap_future(self._writer.submit(operation))

    async def _write(self, operation: Callable[[Transaction], _T | FirstlineError]) -> _T:
        """Returns an operation's result once it is on the disk."""
        return await asyncio.shield(self._submit(operation))

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs a query over the reader's connection, which never waits for the writer.

        Raises:
            CapacityError: the disk refuses.
        """
        self.check()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._reading, query, self._reader)
        except SQLITE_ERRORS as error:
            self._read_problem = f"The outbox could not be read: {error}. Is the disk failing?"
            raise CapacityError(self._read_problem) from error
        self._read_problem = ""
        return found

    def _note_unannounced(self) -> None:
        for event in self._to_announce.values():
            event.set()


def open_outbox(
    settings: EdgeSettings, path: Path, clock: Clock, reporting: asyncio.Event | None, on_damage: OnDamage
) -> Outbox:
    """Returns the outbox of a device.

    Args:
        settings: of the agent.
        path: of the database.
        clock: for ages.
        reporting: set while answers are reported to the fleet; None for a device without a fleet.
        on_damage: see `Outbox`.

    Raises:
        ConfigError: a newer version wrote it.
    """
    has_broker = any(link.kind == "mqtt" for link in settings.links)

    def announcing() -> list[Receiver]:
        is_reporting = reporting is not None and reporting.is_set()
        return has_broker * [Receiver.APPLICATIONS] + is_reporting * [Receiver.FLEET]

    return Outbox(
        path,
        settings.outbox,
        announcing=announcing,
        on_damage=on_damage,
        seal=partial(open_seal, settings.encryption),
        clock=clock,
    )


def register_metrics(metrics: RequestMetrics, outbox: Outbox) -> None:
    """Registers the number and the size of the promises that wait."""
    metrics.gauge("outbox_items", "Promised corrections that are still to come.", lambda: outbox.depth)
    metrics.gauge("outbox_bytes", "Payload in the outbox.", lambda: outbox.size_bytes)
