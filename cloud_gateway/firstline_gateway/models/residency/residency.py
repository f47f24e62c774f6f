"""Holds a model for a request, and loads it first if it is not in memory.

A request holds its model from the moment it is let in to its answer. One that finds it out of memory waits, within its
deadline, for one load that all who wait share. Models that were not requested yet are loaded in the background.
"""

from __future__ import annotations

import asyncio

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, NotReadyError
from firstline_core.protocol.data_plane import ModelState
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.models.repository import Repository, ServedModel, in_loading_order
from firstline_gateway.models.residency.memory import Load, ModelHost, ModelMemory, Place
from firstline_gateway.models.residency.orders import Find, Orders

log = logger(__name__)

# After a load that failed, of a model that was read before.
_RETRY_S = 10.0


class Residency:
    """Belongs to one event loop.

    Args:
        repository: the served models; changed by orders.
        executor: runs what is in memory.
        load: one model, blocking; None where models run elsewhere: then all of them are always there.
        find: the bundles of a name as they lie in the folder now, blocking.
        budget_bytes: of all models in memory, or 0 for no limit.
        patience_s: how long a request without a deadline waits for its model.
        background: whether what is not in memory yet is loaded from `start` on, as far as there is room.
        clock: for deadlines.
    """

    def __init__(
        self,
        repository: Repository,
        executor: ModelHost,
        *,
        load: Load | None = None,
        find: Find = lambda name: ([], []),
        budget_bytes: int = 0,
        patience_s: float = 10.0,
        background: bool = False,
        clock: Clock,
    ) -> None:
        self._repository = repository
        self._patience_s = patience_s
        self._clock = clock
        self._beginning: asyncio.Task[None] | None = None
        self.complete = load is None or not background
        self.memory = ModelMemory(repository, executor, load=load, budget_bytes=budget_bytes, clock=clock)
        self.orders = Orders(repository, self.memory, find)

    async def start(self) -> None:
        """Begins to load what is to be in memory, where that was not done before."""
        if not self.complete:
            self._beginning = asyncio.create_task(self._begin())

    async def close(self) -> None:
        """Stops loading; the executor owns the models in memory."""
        tasks = [place.work for place in self.memory.places.values() if place.work is not None]
        tasks += [self._beginning] if self._beginning is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.orders.close(), return_exceptions=True)
        self.memory.close()

    async def brought(self, key: ModelKey, deadline_s: float | None) -> Place:
        """As `ModelMemory.hold`, once the model is in memory.

        Raises:
            UnknownModelError: it was unloaded meanwhile.
            NotReadyError: it cannot be loaded, or not in time; `retry_after_s` says when to come back.
        """
        until_s = self._clock.monotonic_s() + self._patience_s if deadline_s is None else deadline_s
        while (held := self.memory.hold(key)) is None:
            self._repository.resolve(key.name, str(key.version))
            place = self.memory.places[key]
            now_s = self._clock.monotonic_s()
            if place.problem and now_s < place.retry_s:
                raise NotReadyError(
                    f"Model '{key.name}' cannot be loaded: {place.problem}", retry_after_s=place.retry_s - now_s
                )
            if now_s >= until_s:
                raise NotReadyError(
                    f"Model '{key.name}' is not in memory, and is not loaded in the time that the request allows; send "
                    "it again later.",
                    retry_after_s=self.memory.load_s,
                )
            if place.work is None:
                place.work = asyncio.create_task(self._bring(place))
            await self._wait(place, place.work, until_s - now_s)
        return held

    def state(self, served: ServedModel, trouble: str) -> ModelState:
        """Returns the state of a served version.

        Args:
            served: that version.
            trouble: why the executors, or the gateway, cannot run it; "" if they can.
        """
        key, place = served.key, self.memory.places[served.key]
        name, version = key.name, str(key.version)
        if trouble:
            return ModelState(name, version, ready=False, reason=trouble)
        if place.is_in:
            return ModelState(name, version, ready=True, reason=place.problem)
        if place.problem:
            return ModelState(name, version, ready=False, reason=place.problem)
        if place.work is not None or not self.complete:
            return ModelState(name, version, ready=False, reason="it is being loaded", passing="LOADING")
        return ModelState(name, version, ready=True, reason="not in memory; the next request has it loaded")

    def ready(self, key: ModelKey) -> bool:
        """Whether a request would be answered, if need be after a load."""
        return self.state(self.memory.places[key].served, "").ready

    async def _wait(self, place: Place, work: asyncio.Task[None], seconds: float) -> None:
        place.waiting += 1
        ended = asyncio.Event()
        work.add_done_callback(wake := lambda _: ended.set())
        timer = self._clock.call_at(self._clock.monotonic_s() + seconds, ended.set)
        try:
            await ended.wait()
        finally:
            timer.cancel()
            work.remove_done_callback(wake)
            place.waiting -= 1
            self.memory.changed.set()

    async def _begin(self) -> None:
        """Loads the models that fit into the free memory, the current versions first."""
        for served in in_loading_order(place.served for place in self.memory.places.values()):
            place = self.memory.places.get(served.key)
            if place is None or place.is_in or not self.memory.fits(place.served):
                continue
            if place.work is None:
                place.work = asyncio.create_task(self._bring(place))
            await asyncio.wait([place.work])
        self.complete = True

    async def _bring(self, place: Place) -> None:
        """Loads a model into memory, if it is still wanted; records an error on its place."""
        key = place.served.key
        try:
            async with self.memory.turn:
                while self._is_wanted(place) and not self.memory.fits(place.served):
                    await self.memory.make_room(place.served)
                if self._is_wanted(place):
                    await self.memory.bring_in(place)
        except FirstlineError as error:
            log.error("model not loaded", model=key.name, version=key.version, error=error.message)
            place.problem, place.retry_s = error.message, self._clock.monotonic_s() + _RETRY_S
        except Exception as error:  # the outermost loop of a task: whoever waits must hear of it
            log.exception("model not loaded", model=key.name, version=key.version)
            place.problem, place.retry_s = f"{type(error).__name__}: {error}", self._clock.monotonic_s() + _RETRY_S
        finally:
            place.work = None

    def _is_wanted(self, place: Place) -> bool:
        key = place.served.key
        if place.is_in or self.memory.places.get(key) is not place or key not in self._repository.models:
            return False
        return place.waiting > 0 or (not self.complete and self.memory.fits(place.served))
