"""Decides which models are in memory: loads them for requests and at start, loads and unloads them by order.

A request holds its model from its admission to its answer. If the model is not in memory, the request waits for it
until its deadline; all waiting requests share one load. Other models are loaded in the background.

The budget counts an estimate that is known before a model is loaded (`ServedModel.memory_bytes`). The process uses
more memory in total: for runs, requests and the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from firstline_core.clock import Clock, end_tasks, first_of
from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    NotReadyError,
    RequestError,
    UnknownModelError,
    did_you_mean,
)
from firstline_core.protocol.data_plane import ModelState
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import ModelKey
from firstline_gateway.models.memory import Load, ModelHost, ModelMemory, Place
from firstline_gateway.models.repository import RefusedBundle, Repository, ServedModel, in_loading_order

log = logger(__name__)

# Delay before a failed load is retried.
_RETRY_S = 10.0
_UNLOADED = "unloaded; POST /v2/repository/models/{name}/load serves it again"

UNLOADING = "it is being unloaded"
"""Reason of a version that is being unloaded by an order."""

Find = Callable[[str], tuple[list[ServedModel], list[RefusedBundle]]]


class Residency:
    """Holds models in memory for requests. Belongs to one event loop.

    Args:
        repository: the served models; changed by orders.
        executor: runs the models in memory.
        load: loads one model, blocking; None if models run in other processes and are always available.
        find: returns the present bundles of a name in the models folder, blocking.
        budget_bytes: memory for all models, or 0 for no limit.
        patience_s: how long a request without a deadline waits for its model.
        background: whether `start` loads models in the background, as far as they fit into the budget.
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
        """Starts to load models in the background, unless they are loaded already."""
        if not self.complete:
            self._beginning = asyncio.create_task(self._begin())

    async def close(self) -> None:
        """Stops loading; the executor owns the models in memory."""
        loads = [place.work for place in self.memory.places.values()]
        await asyncio.gather(end_tasks(*loads, self._beginning), self.orders.close(), return_exceptions=True)
        self.memory.close()

    async def loaded(self, key: ModelKey, deadline_s: float | None) -> Place:
        """Waits until the model is in memory, then holds it like `ModelMemory.hold`.

        Raises:
            UnknownModelError: it was unloaded meanwhile.
            NotReadyError: it cannot be loaded, or not in time; `retry_after_s` is the delay before a retry.
        """
        until_s = self._clock.monotonic_s() + self._patience_s if deadline_s is None else deadline_s
        while (ready := self.memory.hold(key)) is None:
            self._repository.resolve(key.name, str(key.version))
            place = self.memory.places[key]
            now_s = self._clock.monotonic_s()
            if place.problem and now_s < place.retry_s:
                raise NotReadyError(
                    f"Model '{key.name}' cannot be loaded: {place.problem}", retry_after_s=place.retry_s - now_s
                )
            if now_s >= until_s:
                raise NotReadyError(
                    f"Model '{key.name}' is not in memory, and is not loaded in the time that the request allows; "
                    "retry after the time given with this error.",
                    retry_after_s=self.memory.load_s,
                )
            if place.work is None:
                place.work = asyncio.create_task(self._bring(place))
            await self._wait(place, place.work, until_s - now_s)
        return ready

    def state(self, served: ServedModel, problem: str) -> ModelState:
        """Returns the state of a served version.

        Args:
            served: that version.
            problem: why the executors, or the gateway, cannot run it; "" if they can.
        """
        key, place = served.key, self.memory.places[served.key]
        name, version = key.name, str(key.version)
        if problem:
            return ModelState(name, version, ready=False, reason=problem)
        if place.is_in:
            return ModelState(name, version, ready=True, reason=place.problem)
        if place.problem:
            return ModelState(name, version, ready=False, reason=place.problem)
        if place.work is not None or not self.complete:
            return ModelState(name, version, ready=False, reason="it is being loaded", passing="LOADING")
        return ModelState(name, version, ready=True, reason="not in memory; the next request has it loaded")

    def ready(self, key: ModelKey) -> bool:
        """Returns whether a request would be answered, if necessary after a load."""
        return self.state(self.memory.places[key].served, "").ready

    async def _wait(self, place: Place, work: asyncio.Task[None], seconds: float) -> None:
        place.waiting += 1
        try:
            await first_of(asyncio.shield(work), self._clock.sleep(seconds))
        finally:
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
        except Exception as error:  # the waiting requests need the error of this task
            log.exception("model not loaded", model=key.name, version=key.version)
            place.problem, place.retry_s = f"{type(error).__name__}: {error}", self._clock.monotonic_s() + _RETRY_S
        finally:
            place.work = None

    def _is_wanted(self, place: Place) -> bool:
        key = place.served.key
        if place.is_in or self.memory.places.get(key) is not place or key not in self._repository.models:
            return False
        return place.waiting > 0 or (not self.complete and self.memory.fits(place.served))


class Orders:
    """Loads and unloads models by an operator's order. Belongs to one event loop.

    An order that has begun is completed, even if the operator disconnects.

    Args:
        repository: the served models; changed by orders.
        memory: the memory of those models.
        find: returns the present bundles of a name in the models folder, blocking.
    """

    def __init__(self, repository: Repository, memory: ModelMemory, find: Find) -> None:
        self._repository = repository
        self._memory = memory
        self._find = find
        self._under_way: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancels the orders in progress."""
        await end_tasks(*self._under_way)

    async def load(self, name: str) -> None:
        """See `DataPlane.load`. Stops to serve versions that are no longer in the folder."""
        await self._carried_out(self._load(name))

    async def unload(self, name: str) -> None:
        """See `DataPlane.unload`."""
        await self._carried_out(self._unload(name))

    async def add(self, served: ServedModel) -> None:
        """Serves one more version of a bundle.

        Raises:
            FirstlineError: the load failed; nothing has changed.
        """
        await self._carried_out(self._add(served))

    async def retire(self, key: ModelKey, why: str) -> None:
        """Stops to serve one version after the requests in flight are answered."""
        await self._carried_out(self._retire(key, why))

    async def _add(self, served: ServedModel) -> None:
        async with self._memory.turn:
            await self._exchange(served)

    async def _retire(self, key: ModelKey, why: str) -> None:
        async with self._memory.turn:
            place = self._memory.places.get(key)
            if place is not None:
                await self._stop_serving(place, why)

    async def _carried_out(self, order: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(order)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.shield(task)

    async def _load(self, name: str) -> None:
        self._repository.unloaded.discard(name)
        async with self._memory.turn:
            try:
                found, refused = await self._memory.in_thread(partial(self._find, name))
            except ConfigError as error:  # there is no such folder
                raise RequestError(error.message) from error
            keys = [key for key in self._memory.places if key.name == name]
            problems = [bundle.error.message for bundle in refused]
            if not found and not refused:
                if not keys:
                    raise UnknownModelError(
                        f"There is no bundle {shown(name)} in the models folder"
                        f"{did_you_mean(name, {key.name for key in self._memory.places})} To add it, put it there, "
                        "then load it."
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
                for key in keys:
                    if key not in here:
                        await self._stop_serving(
                            self._memory.places[key], "its bundle is no longer in the models folder"
                        )
            for bundle in refused:
                if bundle.key is not None:
                    self._note(bundle.key, bundle.error.message)
        if problems:
            raise RequestError(f"Model {shown(name)}: {' '.join(problems)} What was served before is served on.")

    async def _unload(self, name: str) -> None:
        for version in self._repository.versions(name):  # at once, so that new and waiting requests are refused
            self._repository.take(ModelKey(name, version), UNLOADING)
        self._repository.unloaded.add(name)
        self._memory.changed.set()
        async with self._memory.turn:  # an earlier load may have replaced it
            for place in [place for key, place in self._memory.places.items() if key.name == name]:
                await self._stop_serving(place, _UNLOADED.format(name=name))

    async def _exchange(self, served: ServedModel) -> None:
        await self._memory.exchange(served)
        self._repository.put(served)

    async def _stop_serving(self, place: Place, why: str) -> None:
        key = place.served.key
        self._repository.take(key, UNLOADING)
        await self._memory.unload(place)
        self._repository.take(key, why)
        log.info("model unloaded", model=key.name, version=key.version)

    def _note(self, key: ModelKey, problem: str) -> None:
        """Records for the list of models why the latest bundle of a version is not served."""
        log.error("model not loaded", model=key.name, version=key.version, error=problem)
        place = self._memory.places.get(key)
        if place is None:
            self._repository.away[key] = problem
        elif place.is_in:
            place.problem = f"The latest bundle is not served, the one before is: {problem}"


def register_metrics(metrics: RequestMetrics, residency: Residency) -> None:
    """Registers the number and the size of the models in memory."""
    memory = residency.memory
    metrics.gauge("models_resident", "Versions of models that are in memory.", lambda: len(memory.resident))
    metrics.gauge("models_bytes", "Memory that they use of models.memory_budget_mb (bytes).", lambda: memory.used_bytes)
