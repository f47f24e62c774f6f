"""Orders of an operator: to load a model again from its folder, or to unload it.

An order that has begun is completed, even if the operator disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from firstline_core.errors import ConfigError, FirstlineError, RequestError, UnknownModelError
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.models.repository import RefusedBundle, Repository, ServedModel, in_loading_order
from firstline_gateway.models.residency.memory import ModelMemory, Place

log = logger(__name__)

UNLOADING = "it is being unloaded"
_UNLOADED = "unloaded; POST /v2/repository/models/{name}/load serves it again"

Find = Callable[[str], tuple[list[ServedModel], list[RefusedBundle]]]


class Orders:
    """Belongs to one event loop.

    Args:
        repository: the served models; changed by orders.
        memory: of those models.
        find: the bundles of a name as they lie in the folder now, blocking.
    """

    def __init__(self, repository: Repository, memory: ModelMemory, find: Find) -> None:
        self._repository = repository
        self._memory = memory
        self._find = find
        self._under_way: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends what is under way where it is."""
        under_way = [*self._under_way]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def load(self, name: str) -> None:
        """See `DataPlane.load`. Versions that lie in the folder no more are served no more."""
        await self._carried_out(self._load(name))

    async def unload(self, name: str) -> None:
        """See `DataPlane.unload`."""
        await self._carried_out(self._unload(name))

    async def add(self, served: ServedModel) -> None:
        """Serves one more version of a bundle.

        Raises:
            FirstlineError: it does not load; nothing has changed.
        """
        await self._carried_out(self._add(served))

    async def retire(self, key: ModelKey, why: str) -> None:
        """Serves one version no more; requests for it that are under way are answered."""
        await self._carried_out(self._retire(key, why))

    async def _add(self, served: ServedModel) -> None:
        async with self._memory.turn:
            await self._exchange(served)

    async def _retire(self, key: ModelKey, why: str) -> None:
        async with self._memory.turn:
            place = self._memory.places.get(key)
            if place is not None:
                await self._give_up(place, why)

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
            known = [key for key in self._memory.places if key.name == name]
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
                        await self._give_up(self._memory.places[key], "its bundle lies in the models folder no more")
            for bundle in refused:
                if bundle.key is not None:
                    self._note(bundle.key, bundle.error.message)
        if problems:
            raise RequestError(f"Model {shown(name)}: {' '.join(problems)} What was served before is served on.")

    async def _unload(self, name: str) -> None:
        for version in self._repository.versions(name):  # at once: who asks now, or waits for it, is refused
            self._repository.take(ModelKey(name, version), UNLOADING)
        self._repository.unloaded.add(name)
        self._memory.changed.set()
        async with self._memory.turn:  # a load that had its turn before may have served it anew
            for place in [place for key, place in self._memory.places.items() if key.name == name]:
                await self._give_up(place, _UNLOADED.format(name=name))

    async def _exchange(self, served: ServedModel) -> None:
        await self._memory.exchange(served)
        self._repository.put(served)

    async def _give_up(self, place: Place, why: str) -> None:
        key = place.served.key
        self._repository.take(key, UNLOADING)
        await self._memory.give_up(place)
        self._repository.take(key, why)
        log.info("model unloaded", model=key.name, version=key.version)

    def _note(self, key: ModelKey, problem: str) -> None:
        """Has the list of models tell why the latest bundle of a version is not what is served."""
        log.error("model not loaded", model=key.name, version=key.version, error=problem)
        place = self._memory.places.get(key)
        if place is None:
            self._repository.away[key] = problem
        elif place.is_in:
            place.problem = f"The latest bundle is not served, the one before is: {problem}"
