"""The models in memory, and the requests that hold them: models are loaded, exchanged and evicted here.

The least recently used model is evicted first, and only if no request holds it or waits for it. One change is made at a
time, under the lock `turn`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.clock import Clock
from firstline_core.errors import NotReadyError
from firstline_core.runtime.memory import release_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.models.repository import Repository, ServedModel, check_size

log = logger(__name__)

_FIRST_LOAD_S = 1.0

Load = Callable[[ServedModel], LoadedModel]


class ModelHost(Protocol):
    """Runs the models that are in memory; the executors implement it."""

    async def put(self, served: ServedModel) -> None:
        """Starts to run a model, and replaces an earlier one with the same key."""

    async def drop(self, key: ModelKey) -> None:
        """Stops to run a model, and returns once its memory is free."""


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Place:
    """A version that is served, and whether it is in memory.

    Args:
        served: the version, without the loaded model, which only the executor holds.
        is_in: whether it is in memory, so that a request may hold it.
        holders: number of requests that hold it.
        waiting: number of requests that wait for it.
        used: sequence number of the latest hold; orders places by their latest use.
        work: the running or scheduled load.
        problem: why the latest load failed.
        retry_s: when the load may be retried.
        leaving: whether it is being evicted and still uses memory.
    """

    served: ServedModel
    is_in: bool
    holders: int = 0
    waiting: int = 0
    used: int = 0
    work: asyncio.Task[None] | None = None
    problem: str = ""
    retry_s: float = 0.0
    leaving: bool = False


class ModelMemory:
    """Loads and evicts models within a budget. Belongs to one event loop.

    Args:
        repository: the served models; their loaded models move to the executor.
        executor: runs the models in memory.
        load: loads one model, blocking; None if models run in other processes and are always available.
        budget_bytes: memory for all models, or 0 for no limit.
        clock: measures the duration of loads.
    """

    def __init__(
        self, repository: Repository, executor: ModelHost, *, load: Load | None, budget_bytes: int, clock: Clock
    ) -> None:
        self._executor = executor
        self._load = load
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._count = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model-loader")
        self.turn = asyncio.Lock()
        self.changed = asyncio.Event()  # a request released a model, or stopped waiting for it
        self.load_s = _FIRST_LOAD_S  # duration of the latest load, at least `_FIRST_LOAD_S`
        self.places: dict[ModelKey, Place] = {}
        for served in repository:
            is_in = load is None or not served.copies or served.loaded is not None
            self.places[served.key] = Place(served, is_in)
            if load is not None and served.loaded is not None:
                self.places[served.key].served = replace(served, loaded=None)
                repository.put(self.places[served.key].served)

    def close(self) -> None:
        """Stops loading; the executor owns the models in memory."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def used_bytes(self) -> int:
        """Estimated memory of the models in memory."""
        return sum(place.served.memory_bytes for place in self.places.values() if place.is_in or place.leaving)

    @property
    def resident(self) -> list[ModelKey]:
        """The models in memory."""
        return [key for key, place in self.places.items() if place.is_in]

    def hold(self, key: ModelKey) -> Place | None:
        """Keeps a model in memory until `release`; returns None if it is not in memory."""
        place = self.places.get(key)
        if place is None or not place.is_in:
            return None
        place.holders += 1
        place.used = next(self._count)
        return place

    def release(self, place: Place) -> None:
        place.holders -= 1
        if not place.holders:
            self.changed.set()

    def fits(self, served: ServedModel) -> bool:
        """Returns whether there is room for one more model."""
        return not self._budget_bytes or self.used_bytes + served.memory_bytes <= self._budget_bytes

    # Changes, under the lock `turn`.

    async def make_room(self, served: ServedModel) -> None:
        """Evicts the least recently used model; if requests hold all models, waits for a release.

        Raises:
            ModelLoadError: the model exceeds the whole budget.
        """
        check_size(served, self._budget_bytes)
        if not await self._evict_one():
            self.changed.clear()
            await self.changed.wait()

    async def bring_in(self, place: Place) -> None:
        """Loads a model for which there is room.

        Raises:
            FirstlineError: the load failed.
        """
        loaded = await self._loaded(place.served)
        await self._executor.put(replace(place.served, loaded=loaded))
        place.is_in, place.problem = True, ""
        key = place.served.key
        log.info("model loaded", model=key.name, version=key.version, digest=place.served.digest)

    async def exchange(self, served: ServedModel) -> None:
        """Replaces a bundle by its present files. The former model stays in memory until the new one is loaded.

        Raises:
            FirstlineError: the load failed; nothing has changed.
        """
        key, before = served.key, self.places.get(served.key)
        fresh = Place(served, is_in=True)
        loaded = None
        if self._load is not None and served.copies:
            if self._budget_bytes:
                check_size(served, self._budget_bytes)
                while not self.fits(served) and await self._evict_one(except_for=key):
                    pass
                if not self.fits(served) and (before is None or not before.is_in):
                    raise NotReadyError(
                        "There is no room for it: requests use all models in memory; retry when they have ended."
                    )
            loaded = await self._loaded(served)
        was_in = before is not None and before.is_in
        try:
            if before is not None:
                before.is_in = False  # new requests wait for the new one
                await self._until_released(before)
            await self._executor.put(replace(served, loaded=loaded))
        except BaseException:
            if before is not None:
                before.is_in = was_in
            raise
        if loaded is not None:
            await self.in_thread(release_freed_memory)
        self.places[key] = fresh
        self.changed.set()
        log.info("model loaded", model=key.name, version=key.version, digest=served.digest)

    async def unload(self, place: Place) -> None:
        """Removes a version from memory once no request holds it."""
        key = place.served.key
        await self._until_released(place)
        del self.places[key]
        self.changed.set()
        if place.is_in:
            place.is_in = False
            await self._executor.drop(key)
            await self.in_thread(release_freed_memory)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs blocking work in the loading thread, after the loads that began earlier."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _evict_one(self, except_for: ModelKey | None = None) -> bool:
        idle = [
            place
            for key, place in self.places.items()
            if place.is_in and place.served.copies and not place.holders and not place.waiting and key != except_for
        ]
        if not idle:
            return False
        place = min(idle, key=lambda place: place.used)
        place.is_in, place.leaving = False, True
        try:
            await self._executor.drop(place.served.key)
        finally:
            place.leaving = False
        await self.in_thread(release_freed_memory)
        log.info("model evicted", model=place.served.key.name, version=place.served.key.version)
        return True

    async def _until_released(self, place: Place) -> None:
        while place.holders:
            self.changed.clear()
            await self.changed.wait()

    async def _loaded(self, served: ServedModel) -> LoadedModel:
        assert self._load is not None  # noqa: S101 (without `load`, every model is always available)
        started_s = self._clock.monotonic_s()
        loaded = await self.in_thread(partial(self._load, served))
        self.load_s = max(_FIRST_LOAD_S, self._clock.monotonic_s() - started_s)
        return loaded
