"""What the fleet asks this device to measure: one request after the other, as long as each is wanted.

Points are written down one by one (`firstline_core.profile.measure`), so that a restart, a request that is taken back,
and one that asks for more cost no point that is measured.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from firstline_core.clock import Clock, first_of
from firstline_core.errors import CapacityError, ConfigError, FirstlineError, LinkError, UnauthorizedError
from firstline_core.fleet.profiling import ENDED, DesiredProfile, Profiling, ProfilingState
from firstline_core.profile.profile import Profile
from firstline_core.profile.reading import read_profile
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.profiling.ledger import Ledger, keep_ledger, read_ledger
from firstline_edge.profiling.process import Order, Told

log = logger(__name__)

_S = ProfilingState
_PASSING = (LinkError, CapacityError, UnauthorizedError)  # a key or a certificate may be renewed meanwhile
_RETRY_S, _RETRY_MAX_S = 5.0, 600.0
_TELL_S = 10.0
"""Progress is told so often at most: a report has all that the device says of itself, over what link there is."""

Measure = Callable[[Order, Callable[[Told], Awaitable[None]]], Awaitable[Told]]


class Profiler:
    """One device's.

    Args:
        path: of the ledger.
        order: what to run for a request; raises `ConfigError` with the reason where nothing is to be run.
        upload: has the gateway keep a profile.
        clock: the agent's.
        rng: jitter.
        measure: runs it.
        changed: told whenever a request stands otherwise.
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
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._order = order
        self._upload = upload
        self._clock = clock
        self._rng = rng
        self._changed = changed
        self._measure = measure
        self._ledger = read_ledger(path)
        self._wanted: tuple[DesiredProfile, ...] = ()
        self._news = asyncio.Event()

    def desire(self, wanted: tuple[DesiredProfile, ...]) -> None:
        """What the fleet wants measured now."""
        self._wanted = wanted
        ledger = self._ledger.only(frozenset(one.id for one in wanted))
        for one in wanted:
            if ledger.of(one.id) is None:
                ledger = ledger.noted(Profiling(one.id, one.bundle, _S.WAITING, since_s=self._clock.wall_s()))
        self._ledger = ledger
        self._news.set()

    def progress(self) -> tuple[Profiling, ...]:
        """How far each request came, in their order."""
        found = (self._ledger.of(one.id) for one in self._wanted)
        return tuple(one for one in found if one is not None)

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._news.clear()
            asked = next((one for one in self._wanted if not self._has_ended(one)), None)
            if asked is None:
                await self._news.wait()
            else:
                await self._while_wanted(asked)

    async def _while_wanted(self, asked: DesiredProfile) -> None:
        task = asyncio.create_task(self._work(asked))
        try:
            while not task.done() and any(one.id == asked.id for one in self._wanted):
                self._news.clear()
                await first_of(asyncio.wait({task}), self._news.wait())
            if not task.done():
                log.info("profile no longer wanted", bundle=asked.bundle, request=asked.id)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self, asked: DesiredProfile) -> None:
        try:
            profile = await self._measured(asked)
            await self._note(asked, _S.UPLOADING, version=profile.version)
            await self._deliver(asked, profile)
            await self._note(asked, _S.DONE, message="")
        except FirstlineError as error:
            await self._note(asked, _S.REFUSED, message=error.message[:500])
        except Exception:  # the outermost loop of a task that must never end
            log.exception("a profile failed unexpectedly", bundle=asked.bundle)
            await self._note(asked, _S.REFUSED, message="Measuring failed unexpectedly; the agent's log says more.")

    async def _measured(self, asked: DesiredProfile) -> Profile:
        """All points, those among them that are known from before."""
        order = replace(self._order(asked), anew=asked.anew and asked.id not in self._ledger.begun)
        await self._note(asked, _S.MEASURING)
        told_s = self._clock.monotonic_s()

        async def told(said: Told) -> None:
            nonlocal told_s
            if said.done and asked.id not in self._ledger.begun:
                await self._keep(self._ledger.noted(self._entry(asked), begun=True))
            if said.waits != self._entry(asked).message:
                await self._note(asked, _S.MEASURING, message=said.waits)
            now_s = self._clock.monotonic_s()
            if not self._entry(asked).total or now_s - told_s >= _TELL_S:
                told_s = now_s
                self._ledger = self._ledger.noted(replace(self._entry(asked), done=said.done, total=said.total))
                self._changed()

        last = await self._measure(order, told)
        if not last.measured:
            raise ConfigError(
                f"No point of {asked.bundle} could be measured: {last.refused or 'it has no model here.'}"
            )
        profile = await asyncio.to_thread(read_profile, Path(order.path))
        if profile is None or profile.bundle != asked.bundle:
            raise ConfigError(f"The profile of {asked.bundle} is gone; ask again.")
        entry = replace(self._entry(asked), done=last.done, total=last.done)
        self._ledger = self._ledger.noted(entry)
        return profile

    async def _deliver(self, asked: DesiredProfile, profile: Profile) -> None:
        """Sends it until somebody has it."""
        failures = 0
        while True:
            try:
                await self._upload(profile)
                return
            except _PASSING as error:
                if not failures:
                    log.warning("profile not delivered yet", bundle=asked.bundle, error=error.message)
                    await self._note(asked, _S.UPLOADING, message=error.message[:500])
                failures += 1
                pause_s = full_jitter_s(self._rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                await self._clock.sleep(max(pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S)))

    async def _note(self, asked: DesiredProfile, state: ProfilingState, *, message: str = "", version: int = 0) -> None:
        before = self._entry(asked)
        changes = {"state": state, "message": message, "version": version or before.version}
        await self._keep(self._ledger.noted(replace(before, **changes, since_s=self._clock.wall_s())))
        if state is not before.state:
            log.info("profile", bundle=asked.bundle, request=asked.id, state=state.value, why=message or None)

    async def _keep(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changed()
        writing = asyncio.create_task(asyncio.to_thread(keep_ledger, self._path, ledger))
        try:
            await asyncio.shield(writing)
        finally:
            await writing  # whoever ends the agent now finds on the disk what was told already

    def _entry(self, asked: DesiredProfile) -> Profiling:
        return self._ledger.of(asked.id) or Profiling(asked.id, asked.bundle, _S.WAITING)

    def _has_ended(self, asked: DesiredProfile) -> bool:
        return self._entry(asked).state in ENDED
