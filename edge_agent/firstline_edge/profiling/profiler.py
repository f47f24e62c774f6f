"""Works through the profiles that the fleet asks this device to measure, as long as each is wanted.

Points are written one by one, so that neither a restart, nor a cancelled request, nor one that asks for more loses a
point that is measured. The progress of the requests is stored, so that a finished one is not repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.clock import Clock, end_tasks, first_of
from firstline_core.errors import CapacityError, FirstlineError, LinkError, UnauthorizedError
from firstline_core.fleet.twin import REQUESTS, DesiredProfile, Profiling, ProfilingState
from firstline_core.profile.profile import Profile
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.profiling.measuring import Measured, OnProgress, Order, Progress
from firstline_edge.state import read_or, store

log = logger(__name__)

_S = ProfilingState
_CONTENT = "profile progress"
_TEMPORARY = (LinkError, CapacityError, UnauthorizedError)  # a key or a certificate may be renewed meanwhile
_RETRY_S, _RETRY_MAX_S = 5.0, 600.0
_REPORT_S = 10.0
"""Shortest time between two reports of progress: a report contains everything that the device says about itself."""

Measure = Callable[[Order, OnProgress], Awaitable[Measured]]


class Ledger(Struct, frozen=True):
    """Progress of all known requests.

    Attributes:
        begun: ids of those of which a point was measured; their known points are not measured again once more.
    """

    entries: Annotated[tuple[Profiling, ...], Meta(max_length=REQUESTS)] = ()
    begun: Annotated[tuple[str, ...], Meta(max_length=REQUESTS)] = ()

    def find(self, id_: str) -> Profiling | None:
        """Returns the progress of a request; None if it is unknown."""
        return next((one for one in self.entries if one.id == id_), None)

    def only(self, ids: frozenset[str]) -> Ledger:
        """Returns the ledger without requests that are no longer wanted."""
        kept = tuple(one for one in self.entries if one.id in ids)
        return Ledger(kept, tuple(one for one in self.begun if one in ids))

    def with_entry(self, entry: Profiling, *, begun: bool = False) -> Ledger:
        """Returns the ledger with new progress of a request."""
        others = tuple(one for one in self.entries if one.id != entry.id)
        began = tuple(dict.fromkeys((*self.begun, entry.id))) if begun else self.begun
        return Ledger((*others, entry), began)


class Profiler:
    """Works through the requests of one device.

    Args:
        path: of the ledger.
        order: returns what to measure for a request; raises `ConfigError` with the reason if it is not measured.
        upload: sends a profile to the gateway.
        clock: the agent's clock.
        rng: jitter.
        measure: measures an order.
        on_change: called when the progress of a request changes.
    """

    def __init__(
        self,
        path: Path,
        order: Callable[[DesiredProfile], Order],
        upload: Callable[[Profile], Awaitable[None]],
        *,
        clock: Clock,
        rng: random.Random,
        measure: Measure,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._order = order
        self._upload = upload
        self._clock = clock
        self._rng = rng
        self._on_change = on_change
        self._measure = measure
        self._ledger = read_or(path, Ledger(), _CONTENT)
        self._wanted: tuple[DesiredProfile, ...] = ()
        self._news = asyncio.Event()

    def receive(self, wanted: tuple[DesiredProfile, ...]) -> None:
        """Sets the requests that the fleet makes now."""
        self._wanted = wanted
        ledger = self._ledger.only(frozenset(one.id for one in wanted))
        for one in wanted:
            if ledger.find(one.id) is None:
                ledger = ledger.with_entry(Profiling(one.id, one.bundle, _S.WAITING, since_s=self._clock.wall_s()))
        self._ledger = ledger
        self._news.set()

    def progress(self) -> tuple[Profiling, ...]:
        """Returns the progress of each request, in their order."""
        found = (self._ledger.find(one.id) for one in self._wanted)
        return tuple(one for one in found if one is not None)

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._news.clear()
            request = next((one for one in self._wanted if not self._entry(one).state.ended), None)
            if request is None:
                await self._news.wait()
            else:
                await self._while_wanted(request)

    async def _while_wanted(self, request: DesiredProfile) -> None:
        task = asyncio.create_task(self._work(request))
        try:
            while not task.done() and any(one.id == request.id for one in self._wanted):
                self._news.clear()
                await first_of(asyncio.wait({task}), self._news.wait())
            if not task.done():
                log.info("profile no longer wanted", bundle=request.bundle, request=request.id)
        finally:
            await end_tasks(task)

    async def _work(self, request: DesiredProfile) -> None:
        try:
            profile = await self._measured(request)
            await self._note(request, _S.UPLOADING, version=profile.version)
            await self._deliver(request, profile)
            await self._note(request, _S.DONE, message="")
        except FirstlineError as error:
            await self._note(request, _S.REFUSED, message=error.message[:500])
        except Exception:  # the outermost loop of a task that must never end
            log.exception("profile failed", bundle=request.bundle)
            await self._note(request, _S.REFUSED, message="Measuring failed unexpectedly; the agent's log says more.")

    async def _measured(self, request: DesiredProfile) -> Profile:
        order = self._order(request)
        again = request.anew and request.id not in self._ledger.begun
        order = order._replace(options=with_changes(order.options, again=again))
        await self._note(request, _S.MEASURING)
        reported_s = self._clock.monotonic_s()

        async def on_progress(now: Progress) -> None:
            nonlocal reported_s
            if now.done and request.id not in self._ledger.begun:
                await self._store(self._ledger.with_entry(self._entry(request), begun=True))
            if now.waits != self._entry(request).message:
                await self._note(request, _S.MEASURING, message=now.waits)
            entry, now_s = replace(self._entry(request), done=now.done, total=now.total), self._clock.monotonic_s()
            is_first = not self._entry(request).total
            self._ledger = self._ledger.with_entry(entry)
            if is_first or now_s - reported_s >= _REPORT_S:
                reported_s = now_s
                self._on_change()

        profile, points = await self._measure(order, on_progress)
        self._ledger = self._ledger.with_entry(replace(self._entry(request), done=points, total=points))
        return profile

    async def _deliver(self, request: DesiredProfile, profile: Profile) -> None:
        """Retries until the gateway has it."""
        failures = 0
        while True:
            try:
                await self._upload(profile)
                return
            except _TEMPORARY as error:
                if not failures:
                    log.warning("profile not delivered yet", bundle=request.bundle, error=error.message)
                    await self._note(request, _S.UPLOADING, message=error.message[:500])
                failures += 1
                pause_s = full_jitter_s(self._rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                await self._clock.sleep(max(pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S)))

    async def _note(
        self, request: DesiredProfile, state: ProfilingState, *, message: str = "", version: int = 0
    ) -> None:
        before = self._entry(request)
        changes = {"state": state, "message": message, "version": version or before.version}
        await self._store(self._ledger.with_entry(replace(before, **changes, since_s=self._clock.wall_s())))
        if state is not before.state:
            log.info(
                "profile state changed",
                bundle=request.bundle,
                request=request.id,
                state=state.value,
                why=message or None,
            )

    async def _store(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._on_change()
        writing = asyncio.create_task(asyncio.to_thread(store, self._path, ledger, _CONTENT))
        try:
            await asyncio.shield(writing)
        finally:
            await writing  # what was reported is on disk before a cancellation continues

    def _entry(self, request: DesiredProfile) -> Profiling:
        return self._ledger.find(request.id) or Profiling(request.id, request.bundle, _S.WAITING)
