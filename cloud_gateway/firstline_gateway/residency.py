"""Which full models are in memory: loaded in the background, within a budget, and given up when others need the room.

A request holds its model from the moment it is let in to its answer. One that finds it out of memory waits, within its
deadline, for one load that all who wait share. Room is made by giving up the model that was used longest ago, and only
where nobody holds it. One change is made at a time: a load, a giving up, an exchange.

The budget counts what models are known to take before they are loaded (`ServedModel.memory_bytes`). What the process
takes in total is more: runs, requests, the interpreter.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, FirstlineError, NotReadyError, RequestError, UnknownModelError
from firstline_core.protocol.data_plane import ModelState
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_gateway.executors.base import Executor, ModelKey
from firstline_gateway.repository import RefusedBundle, Repository, ServedModel, check_size, in_loading_order

log = logger(__name__)

# After a load that failed, of a model that was read before.
_RETRY_S = 10.0
_FIRST_LOAD_S = 1.0
UNLOADING = "it is being unloaded"
_UNLOADED = "unloaded; POST /v2/repository/models/{name}/load serves it again"

Load = Callable[[ServedModel], LoadedModel]
Find = Callable[[str], tuple[list[ServedModel], list[RefusedBundle]]]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Place:
    """A version that is served, and whether it is in memory.

    Args:
        served: what it is; the loaded model is with the executor alone.
        is_in: whether a request may hold it now.
        holders: requests that do.
        waiting: requests that wait until they can.
        used: when it was held last, in counts of that.
        work: the load under way, or asked for.
        problem: why it could not be loaded the last time.
        retry_s: when that may be tried again.
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


class Residency:
    """Belongs to one event loop.

    Args:
        repository: what is served; changed by `load` and `unload`.
        executor: runs what is in memory.
        load: one model, blocking; None where models run elsewhere: then all of them are always there.
        find: the bundles of a name as they lie in the folder now, blocking.
        budget_bytes: of all that is in memory; 0 is no limit.
        patience_s: how long a request without a deadline waits for its model.
        background: whether what is not in memory yet is loaded from `start` on, as far as there is room.
        clock: what deadlines are on.
    """

    def __init__(
        self,
        repository: Repository,
        executor: Executor,
        *,
        load: Load | None = None,
        find: Find = lambda name: ([], []),
        budget_bytes: int = 0,
        patience_s: float = 10.0,
        background: bool = False,
        clock: Clock,
    ) -> None:
        self._repository = repository
        self._executor = executor
        self._load = load
        self._find = find
        self._budget_bytes = budget_bytes
        self._patience_s = patience_s
        self._clock = clock
        self._count = itertools.count(1)
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()  # somebody let go of a model, or waits for it no more
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model-loader")
        self._load_s = _FIRST_LOAD_S
        self._beginning: asyncio.Task[None] | None = None
        self._orders: set[asyncio.Task[None]] = set()
        self.complete = load is None or not background
        self._places: dict[ModelKey, Place] = {}
        for served in repository:
            self._places[served.key] = Place(served, is_in=load is None or served.loaded is not None)
            if load is not None and served.loaded is not None:  # it is the executor's
                self._places[served.key].served = replace(served, loaded=None)
                repository.put(self._places[served.key].served)

    async def start(self) -> None:
        """Begins to load what is to be in memory, where that was not done before."""
        if not self.complete:
            self._beginning = asyncio.create_task(self._begin())

    async def close(self) -> None:
        """Loads nothing more; what is in memory is the executor's."""
        tasks = [place.work for place in self._places.values() if place.work is not None]
        tasks += [*self._orders, *([self._beginning] if self._beginning is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def used_bytes(self) -> int:
        """What the models in memory take."""
        return sum(place.served.memory_bytes for place in self._places.values() if place.is_in or place.leaving)

    @property
    def resident(self) -> list[ModelKey]:
        """What is in memory."""
        return [key for key, place in self._places.items() if place.is_in]

    # What a request asks.

    def hold(self, key: ModelKey) -> Place | None:
        """Keeps a model in memory until `release`; None where it is not there."""
        place = self._places.get(key)
        if place is None or not place.is_in:
            return None
        place.holders += 1
        place.used = next(self._count)
        return place

    def release(self, place: Place) -> None:
        place.holders -= 1
        if not place.holders:
            self._changed.set()

    async def brought(self, key: ModelKey, deadline_s: float | None) -> Place:
        """As `hold`, once the model is in memory.

        Raises:
            UnknownModelError: it was unloaded meanwhile.
            NotReadyError: it cannot be loaded, or not in time; `retry_after_s` says when to come back.
        """
        until_s = self._clock.monotonic_s() + self._patience_s if deadline_s is None else deadline_s
        while (held := self.hold(key)) is None:
            self._repository.resolve(key.name, str(key.version))
            place = self._places[key]
            now_s = self._clock.monotonic_s()
            if place.problem and now_s < place.retry_s:
                raise NotReadyError(
                    f"Model '{key.name}' cannot be loaded: {place.problem}", retry_after_s=place.retry_s - now_s
                )
            if now_s >= until_s:
                raise NotReadyError(
                    f"Model '{key.name}' is not in memory, and is not loaded in the time that the request allows; send "
                    "it again later.",
                    retry_after_s=self._load_s,
                )
            if place.work is None:
                place.work = asyncio.create_task(self._bring(place))
            await self._wait(place, place.work, until_s - now_s)
        return held

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
            self._changed.set()

    # What an operator asks.

    def state(self, served: ServedModel, trouble: str) -> ModelState:
        """How a served version is.

        Args:
            served: that version.
            trouble: what the engine, or the gateway, says against it; "" for nothing.
        """
        key, place = served.key, self._places[served.key]
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
        return self.state(self._places[key].served, "").ready

    async def load(self, name: str) -> None:
        """See `DataPlane.load`. Versions that lie in the folder no more are served no more."""
        await self._carried_out(self._load_anew(name))

    async def unload(self, name: str) -> None:
        """See `DataPlane.unload`."""
        await self._carried_out(self._unload(name))

    async def _carried_out(self, order: Coroutine[Any, Any, None]) -> None:
        """Ends what was begun, though the operator leaves meanwhile."""
        task = asyncio.create_task(order)
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)
        await asyncio.shield(task)

    async def _load_anew(self, name: str) -> None:
        async with self._turn:
            try:
                found, refused = await self._in_thread(partial(self._find, name))
            except ConfigError as error:  # there is no such folder
                raise RequestError(error.message) from error
            known = [key for key in self._places if key.name == name]
            problems = [bundle.error.message for bundle in refused]
            if not found and not refused:
                if not known:
                    raise UnknownModelError(
                        f"There is no bundle {shown(name)} in the models folder; put it there, then load it."
                    )
                problems.append(f"There is no bundle {shown(name)} in the models folder any more.")
            for served in in_loading_order(found):
                try:
                    await self._exchange(served)
                except FirstlineError as error:
                    problems.append(error.message)
                    self._note(served.key, error.message)
            if found:
                here = {served.key for served in found} | {bundle.key for bundle in refused}
                for key in known:
                    if key not in here:
                        await self._give_up(self._places[key], "its bundle lies in the models folder no more")
            for bundle in refused:
                if bundle.key is not None:
                    self._note(bundle.key, bundle.error.message)
        if problems:
            raise RequestError(f"Model {shown(name)}: {' '.join(problems)} What was served before is served on.")

    async def _unload(self, name: str) -> None:
        for version in self._repository.versions(name):  # at once: who asks now, or waits for it, is refused
            self._repository.take(ModelKey(name, version), UNLOADING)
        self._changed.set()
        async with self._turn:  # a load that had its turn before may have served it anew
            for place in [place for key, place in self._places.items() if key.name == name]:
                await self._give_up(place, _UNLOADED.format(name=name))

    def _note(self, key: ModelKey, problem: str) -> None:
        """Has the list of models tell why the latest bundle of a version is not what is served."""
        log.error("model not loaded", model=key.name, version=key.version, error=problem)
        place = self._places.get(key)
        if place is None:
            self._repository.away[key] = problem
        elif place.is_in:
            place.problem = f"The latest bundle is not served, the one before is: {problem}"

    # Changes, one at a time.

    async def _begin(self) -> None:
        """Loads what fits beside what is there, the current versions first."""
        for served in in_loading_order(place.served for place in self._places.values()):
            place = self._places.get(served.key)
            if place is None or place.is_in or not self._fits(place.served):
                continue
            if place.work is None:
                place.work = asyncio.create_task(self._bring(place))
            await asyncio.wait([place.work])
        self.complete = True

    async def _bring(self, place: Place) -> None:
        """Loads a model into memory, where it is still wanted; what fails is noted on its place."""
        key = place.served.key
        try:
            async with self._turn:
                while self._is_wanted(place) and not self._fits(place.served):
                    await self._make_room(place.served)
                if not self._is_wanted(place):
                    return
                loaded = await self._loaded(place.served)
                await self._executor.put(replace(place.served, loaded=loaded))
                place.is_in, place.problem = True, ""
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
        if place.is_in or self._places.get(key) is not place or key not in self._repository.models:
            return False
        return place.waiting > 0 or (not self.complete and self._fits(place.served))

    def _fits(self, served: ServedModel) -> bool:
        return not self._budget_bytes or self.used_bytes + served.memory_bytes <= self._budget_bytes

    async def _make_room(self, served: ServedModel) -> None:
        """Gives up the model that was used longest ago; where all are held, waits until that has changed.

        Raises:
            ModelLoadError: there will never be room.
        """
        check_size(served, self._budget_bytes)
        if not await self._evict_one():
            self._changed.clear()
            await self._changed.wait()

    async def _evict_one(self, keeping: ModelKey | None = None) -> bool:
        idle = [
            place
            for key, place in self._places.items()
            if place.is_in and not place.holders and not place.waiting and key != keeping
        ]
        if not idle:
            return False
        place = min(idle, key=lambda place: place.used)
        place.is_in, place.leaving = False, True
        try:
            await self._executor.drop(place.served.key)
        finally:
            place.leaving = False
        await self._in_thread(_give_back)
        log.info("model given up for others", model=place.served.key.name, version=place.served.key.version)
        return True

    async def _exchange(self, served: ServedModel) -> None:
        """Serves a bundle as it is now. What was in memory of it stays until the new one is loaded beside it.

        Raises:
            FirstlineError: it does not load; nothing has changed.
        """
        key, before = served.key, self._places.get(served.key)
        fresh = Place(served, is_in=True)
        loaded = None
        if self._load is not None:
            if self._budget_bytes:
                check_size(served, self._budget_bytes)
                while not self._fits(served) and await self._evict_one(keeping=key):
                    pass
                if not self._fits(served) and (before is None or not before.is_in):
                    raise NotReadyError(
                        "There is no room for it: requests hold all that is in memory; come back later."
                    )
            loaded = await self._loaded(served)
        was_in = before is not None and before.is_in
        try:
            if before is not None:
                before.is_in = False  # whoever comes now waits for the new one
                await self._until_let_go(before)
            await self._executor.put(replace(served, loaded=loaded))
        except BaseException:
            if before is not None:
                before.is_in = was_in
            raise
        if loaded is not None:
            await self._in_thread(_give_back)
        self._places[key] = fresh
        self._repository.put(served)
        self._changed.set()
        log.info("model loaded", model=key.name, version=key.version, digest=served.digest)

    async def _give_up(self, place: Place, why: str) -> None:
        key = place.served.key
        self._repository.take(key, UNLOADING)
        await self._until_let_go(place)
        del self._places[key]
        self._changed.set()
        if place.is_in:
            place.is_in = False
            await self._executor.drop(key)
            await self._in_thread(_give_back)
        self._repository.take(key, why)
        log.info("model unloaded", model=key.name, version=key.version)

    async def _until_let_go(self, place: Place) -> None:
        while place.holders:
            self._changed.clear()
            await self._changed.wait()

    async def _loaded(self, served: ServedModel) -> LoadedModel:
        assert self._load is not None  # noqa: S101 (without it every model is always there)
        started_s = self._clock.monotonic_s()
        loaded = await self._in_thread(partial(self._load, served))
        self._load_s = max(_FIRST_LOAD_S, self._clock.monotonic_s() - started_s)
        log.info("model loaded", model=served.key.name, version=served.key.version, digest=served.digest)
        return loaded

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _give_back() -> None:
    """Returns freed memory to the system: glibc keeps what models were loaded from, as much as they take, for later."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return
