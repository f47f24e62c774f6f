"""Drives rollouts, step by step; of replicas that share a store one at a time does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.telemetry.logs import logger
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.applying import apply
from firstline_gateway.rollouts.definition import Rollout
from firstline_gateway.rollouts.step import Now, Step, step
from firstline_gateway.rollouts.view import StoreView
from firstline_gateway.store.database import Database
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import GroupWriter

log = logger(__name__)

_LOOK_S = 5.0
_LEASE_S = 30.0

_T = TypeVar("_T")


class Engine:
    """Belongs to one event loop.

    Args:
        database: steps are made from one moment of it, in a thread of the engine's own: they read the whole fleet.
        writer: carries them out.
        clock: its monotonic time, and wall time.
        service: by which rollouts last, and the lease runs out.
        on_told: called when devices are to run something else.
    """

    def __init__(
        self,
        database: Database,
        writer: GroupWriter,
        *,
        clock: Clock,
        service: ServiceClock,
        on_told: Callable[[], None],
    ) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self._service = service
        self._on_told = on_told
        self._holder = new_request_id()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends, and leaves rollouts to whoever comes next."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(FirstlineError):
            await self._write(lambda connection: records.release(connection, self._holder))

    async def drive(self) -> int:
        """Steps every rollout once that something is to be done for, and again where one has more to do at once.

        Returns:
            How many steps were carried out.
        """
        steps = 0
        for rollout_id in await self._read(records.active):
            more = True
            while more:
                if not await self._write(
                    partial(records.lease, holder=self._holder, service_s=self._service.now_s(), for_s=_LEASE_S)
                ):
                    return steps
                more = await self._step(rollout_id)
                steps += 1
        return steps

    async def _step(self, rollout_id: str) -> bool:
        """One step of one rollout; whether the next is due at once."""
        now = Now(self._service.now_s(), self._clock.wall_s())
        found = await self._read(partial(_made, rollout_id=rollout_id, now=now))
        if found is None:
            return False
        before, made = found
        after = await self._write(lambda connection: apply(connection, before, made, now.wall_s))
        if made.told:
            self._on_told()
        if after is None:
            return True  # somebody was faster
        for action, actor, details in made.notes:
            log.info(action, rollout=rollout_id, by=actor, sentence=details.get("sentence", ""))
        return made.more

    async def _run(self) -> None:
        while True:
            try:
                await self.drive()
            except CapacityError:
                pass  # the store, which says so, once
            except Exception:  # the outermost loop of a task that must never end
                log.exception("rollouts could not be driven")
            self._wake.clear()
            timer = self._clock.call_at(self._clock.monotonic_s() + _LOOK_S, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def _read(self, read: Callable[[Connection], _T]) -> _T:
        def reading() -> _T:
            with self._database.snapshot() as connection:
                return read(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, reading)

    async def _write(self, operation: Callable[[Connection], _T]) -> _T:
        return await asyncio.wrap_future(self._writer.submit(operation))


def _made(connection: Connection, rollout_id: str, now: Now) -> tuple[Rollout, Step] | None:
    rollout = records.find(connection, rollout_id)
    if rollout is None:
        return None
    view = StoreView(connection, rollout_id, rollout.definition, now.wall_s)
    return rollout, step(rollout, records.assignments(connection, rollout_id), view, now)
