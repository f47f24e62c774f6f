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
from firstline_gateway.background import PeriodicTask
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.changes import Now, Step
from firstline_gateway.rollouts.definition import Rollout
from firstline_gateway.rollouts.execution import apply
from firstline_gateway.rollouts.late_joiners import in_force, joined
from firstline_gateway.rollouts.mirror import Mirror
from firstline_gateway.rollouts.step import step
from firstline_gateway.rollouts.view import StoreView
from firstline_gateway.store.database import Database
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import StoreWriter

log = logger(__name__)

_LOOK_S = 5.0
_LEASE_S = 30.0

_JOIN_S = 60.0
_CLOSE_S = 2.0

_T = TypeVar("_T")
_Made = tuple[Rollout, Step] | None


class Engine:
    """Belongs to one event loop.

    Args:
        database: steps are made from one moment of it, in a thread of the engine's own: they look at the whole fleet.
        writer: carries them out.
        clock: its monotonic time, and wall time.
        service: by which rollouts last, and the lease runs out.
        on_told: called when devices are to run something else.
    """

    def __init__(
        self,
        database: Database,
        writer: StoreWriter,
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
        self._driving = asyncio.Lock()
        self._task = PeriodicTask("rollouts", self.drive, interval_s=_LOOK_S, clock=clock, wake=self._wake)
        self._joining_s = clock.monotonic_s()
        self._mirrors: dict[str, Mirror] = {}  # by rollout; used on that thread

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def start(self) -> None:
        self._task.start()

    async def close(self) -> None:
        """Stops, and releases the lease for another replica."""
        await self._task.close()
        with contextlib.suppress(TimeoutError):  # the database may hold the thread for long
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        with contextlib.suppress(FirstlineError):
            await self._writer.write(lambda connection: records.release(connection, self._holder))

    async def drive(self) -> int:
        """Steps every rollout once that something is to be done for, and again where one has more to do at once.

        Returns:
            How many steps were carried out.
        """
        async with self._driving:
            steps = 0
            active = await self._read(records.active)
            for each in active:
                steps += await self._follow(partial(_stepped, rollout_id=each, mirrors=self._mirrors))
            if self._clock.monotonic_s() >= self._joining_s:
                self._joining_s = self._clock.monotonic_s() + _JOIN_S
                joined_ = [rollout.id for rollout in in_force(await self._read(records.completed))]
                for each in joined_:
                    steps += await self._follow(partial(_joined, rollout_id=each, mirrors=self._mirrors))
                for each in self._mirrors.keys() - {*active, *joined_}:
                    del self._mirrors[each]
            return steps

    async def _follow(self, make: partial[_Made]) -> int:
        """Steps as long as there is something to do at once; one rollout that cannot be stepped holds up no other."""
        steps, more = 0, True
        try:
            while more and await self._leads():
                more = await self._step(make)
                steps += 1
        except CapacityError:
            raise
        except Exception:
            log.exception("rollout step failed", rollout=make.keywords["rollout_id"])
            self._mirrors.pop(make.keywords["rollout_id"], None)
        return steps

    async def _leads(self) -> bool:
        """Takes or renews the right to step."""
        now_s = self._service.now_s()
        return await self._writer.write(partial(records.lease, holder=self._holder, service_s=now_s, for_s=_LEASE_S))

    async def _step(self, make: partial[_Made]) -> bool:
        """One step of one rollout; whether the next is due at once."""
        now = Now(self._service.now_s(), self._clock.wall_s())
        found = await self._read(partial(make, now=now))
        if found is None:
            return False
        before, made = found

        def carried_out(connection: Connection) -> Rollout | None:
            # What was seen may be long ago: another replica may have led meanwhile, and carried out the same.
            if not records.holds(connection, self._holder):
                return None
            return apply(connection, before, made, now.wall_s)

        if await self._writer.write(carried_out) is None:
            return True  # somebody was faster
        if made.told:
            self._on_told()
        for action, actor, details in made.notes:
            log.info(action, rollout=before.id, by=actor, sentence=details.get("sentence", ""))
        return made.more

    async def _read(self, read: Callable[[Connection], _T]) -> _T:
        def reading() -> _T:
            with self._database.snapshot() as connection:
                return read(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, reading)


def _stepped(connection: Connection, rollout_id: str, mirrors: dict[str, Mirror], now: Now) -> _Made:
    rollout = records.find(connection, rollout_id)
    if rollout is None:
        return None
    mirror = mirrors.setdefault(rollout_id, Mirror(rollout.definition))
    view = StoreView(connection, rollout_id, mirror, now.wall_s)
    return rollout, step(rollout, mirror.assignments(connection, rollout_id), view, now)


def _joined(connection: Connection, rollout_id: str, mirrors: dict[str, Mirror], now: Now) -> _Made:
    all_of_them = records.completed(connection)
    rollout = next((each for each in in_force(all_of_them) if each.id == rollout_id), None)
    if rollout is None:
        return None
    place = rollout.definition.place
    same = [each for each in all_of_them if each.definition.place == place]
    ended = [each for each in records.ended(connection) if each.definition.place == place]
    live = [each.id for each in records.live(connection) if each.definition.place == place]
    mirror = mirrors.setdefault(rollout_id, Mirror(rollout.definition))
    view = StoreView(connection, rollout_id, mirror, now.wall_s)
    held = mirror.assignments(connection, rollout_id)
    busy = partial(records.assigned, connection, live)
    return rollout, joined(rollout, same, held, view, now, ended=ended, busy=busy)
