"""Drives rollouts, step by step; one at a time of the replicas that share a store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.clock import Clock, first_of
from firstline_core.errors import CapacityError, FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.runtime.threads import in_daemon_thread
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_gateway.background import PeriodicTask
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.fleet_view import FleetCache, FleetView, contract_alarm
from firstline_gateway.rollouts.late_joiners import in_force, join_changes
from firstline_gateway.rollouts.rollout import BEGUN, LIVE, Assignment, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepChanges, StepTime, step
from firstline_gateway.store.database import StoreDamagedError
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

log = logger(__name__)

_LOOK_S = 5.0
_LEASE_S = 30.0

_JOIN_S = 60.0
_CLOSE_S = 2.0

_T = TypeVar("_T")
_Computed = tuple[Rollout, StepChanges] | None
_Compute = Callable[[Connection, str, dict[str, FleetCache], StepTime], _Computed]


@dataclass(eq=False)
class RolloutDriver:
    """Carries out the steps of all active rollouts. Belongs to one event loop.

    Args:
        store: a step reads one snapshot of it in a thread of its own, because it reads the whole fleet.
        clock: monotonic and wall time.
        service: measures the durations of rollouts and of the lease.
        on_desired: called when the desired state of devices has changed.
    """

    store: Store
    clock: Clock
    service: ServiceClock
    on_desired: Callable[[], None]

    def __post_init__(self) -> None:
        self._holder = new_request_id()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._wake = asyncio.Event()
        self._driving = asyncio.Lock()
        self._task = PeriodicTask("rollouts", self.drive, interval_s=_LOOK_S, clock=self.clock, wake=self._wake)
        self._joining_s = self.clock.monotonic_s()
        self._caches: dict[str, FleetCache] = {}  # by rollout; used on the thread of the steps

    def wake(self) -> None:
        """Runs the next steps at once."""
        self._wake.set()

    async def start(self) -> None:
        await self._task.start()

    async def close(self) -> None:
        """Stops, and releases the lease for another replica."""
        await self._task.close()
        # The database may hold the thread for long.
        ending = in_daemon_thread(partial(self._thread.shutdown, cancel_futures=True))
        await first_of(ending, asyncio.sleep(_CLOSE_S))
        with contextlib.suppress(FirstlineError):
            await self.store.change(lambda connection: records.release(connection, self._holder))

    async def drive(self) -> int:
        """Steps every active rollout, and repeats a step that is due at once; returns the number of steps."""
        async with self._driving:
            steps = 0
            active = await self._read(records.active)
            for each in active:
                steps += await self._follow(each, _compute_step)
            if self.clock.monotonic_s() >= self._joining_s:
                self._joining_s = self.clock.monotonic_s() + _JOIN_S
                completed = await self._read(lambda on: records.in_states(on, RolloutState.COMPLETED))
                joinable = [rollout.id for rollout in in_force(completed)]
                for each in joinable:
                    steps += await self._follow(each, _compute_join)
                for each in self._caches.keys() - {*active, *joinable}:
                    del self._caches[each]
            return steps

    async def _follow(self, rollout_id: str, compute: _Compute) -> int:
        """Steps a rollout until no step is due at once; an error in one rollout does not delay the others."""
        steps, more = 0, True
        try:
            while more and await self._leads():
                more = await self._step(rollout_id, compute)
                steps += 1
        except Exception as error:
            if isinstance(error, CapacityError) and not isinstance(error, StoreDamagedError):
                raise  # the store would also refuse the next rollout
            log.exception("rollout step failed", rollout=rollout_id)
            self._caches.pop(rollout_id, None)
        return steps

    async def _leads(self) -> bool:
        """Takes or renews the lease."""
        now_s = self.service.now_s()
        return await self.store.write(partial(records.lease, holder=self._holder, service_s=now_s, for_s=_LEASE_S))

    async def _step(self, rollout_id: str, compute: _Compute) -> bool:
        """Carries out one step of one rollout; returns whether the next is due at once."""
        now = StepTime(self.service.now_s(), self.clock.wall_s())
        started_s = self.clock.monotonic_s()
        computed = await self._read(lambda on: compute(on, rollout_id, self._caches, now))
        if computed is None:
            return False
        before, changes = computed
        seconds = self.clock.monotonic_s() - started_s
        tracing.record("rollout step", tracing.begin(), seconds, own=True, rollout=before.id)

        def carry_out(connection: Connection, part: StepChanges) -> Rollout | None:
            # The snapshot may be old: another replica may have had the lease meanwhile, and carried out the same step.
            if not records.holds(connection, self._holder):
                return None
            # An alarm of this moment must not find a stage promoted, or a late joiner offered the version, after it:
            # the step is computed again.
            offers = before.state in BEGUN or (before.state is RolloutState.COMPLETED and changes.desired)
            if offers and not changes.alarmed and contract_alarm(connection, before.definition):
                return None
            return records.apply(connection, before, part, now.wall_s)

        for part in records.in_parts(before, changes):
            if await self.store.write(partial(carry_out, part=part)) is None:
                return True  # another replica was faster, a person gave a command, or an alarm came
        if changes.desired or changes.audits:
            self.on_desired()
        for action, actor, details in changes.notes:
            log.info(action, rollout=before.id, by=actor, sentence=details.get("sentence", ""))
        return changes.more

    async def _read(self, read: Callable[[Connection], _T]) -> _T:
        def reading() -> _T:
            with self.store.database.snapshot() as connection:
                return read(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, reading)


def _compute_step(connection: Connection, rollout_id: str, caches: dict[str, FleetCache], now: StepTime) -> _Computed:
    rollout = records.find(connection, rollout_id)
    if rollout is None:
        return None
    assignments, view = _read_fleet(connection, rollout, caches, now)
    return rollout, step(rollout, assignments, view, now)


def _compute_join(connection: Connection, rollout_id: str, caches: dict[str, FleetCache], now: StepTime) -> _Computed:
    completed = records.in_states(connection, RolloutState.COMPLETED)
    rollout = next((each for each in in_force(completed) if each.id == rollout_id), None)
    if rollout is None:
        return None

    def alike(rollouts: list[Rollout]) -> list[Rollout]:
        return [each for each in rollouts if each.definition.document_key == rollout.definition.document_key]

    assignments, view = _read_fleet(connection, rollout, caches, now)
    busy = partial(records.assigned, connection, [each.id for each in alike(records.in_states(connection, *LIVE))])
    stopped = records.in_states(connection, RolloutState.ABORTED, RolloutState.ROLLED_BACK)
    ended = alike([each for each in stopped if not each.unsettled])  # no desired state changes any more
    return rollout, join_changes(rollout, alike(completed), assignments, view, now, ended=ended, busy=busy)


def _read_fleet(
    connection: Connection, rollout: Rollout, caches: dict[str, FleetCache], now: StepTime
) -> tuple[dict[str, Assignment], FleetView]:
    cache = caches.setdefault(rollout.id, FleetCache(rollout.definition))
    view = FleetView(connection, rollout.id, rollout.definition, cache, now.wall_s)
    return records.assignments(connection, rollout.id), view
