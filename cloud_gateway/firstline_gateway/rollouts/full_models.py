"""Fetches full models from the registry when the fleet needs them, and retires those that no device needs any more.

Only versions that this gateway's own registry lists are fetched. A request for a version that is signed but not served
here yet, for example because another replica started the rollout, starts the fetch and is asked to retry: its device
answers provisionally and promises a correction. A version in `models.directory` belongs to the operator: it is neither
fetched nor retired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import Struct
from sqlalchemy import Connection, select, type_coerce

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.clock import Clock, end_tasks, first_of
from firstline_core.errors import ConflictError, FirstlineError, NotFoundError, NotReadyError
from firstline_core.fleet.target import ListedBundle, find_bundle, target_path
from firstline_core.fleet.update import UpdateKind
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.background import PeriodicTask
from firstline_gateway.fleet.devices import DEVICES
from firstline_gateway.models.fetched_bundles import FetchedBundles
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.models.residency import Orders
from firstline_gateway.registry.catalogue import CatalogueReader
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.rollout import Definition
from firstline_gateway.store.schema import JsonColumn
from firstline_gateway.store.store import Store

_INTERVAL_S = 10.0
# How long the start of a rollout waits for its full model before the caller is asked to retry: less than clients wait.
_START_TIMEOUT_S = 20.0
_RETIRED = "no device needs it any more; it is fetched again when one does"

log = logger(__name__)


@dataclass(eq=False)
class FullModels:
    """Keeps the full models that the fleet needs. Belongs to one event loop.

    Args:
        fetched: the folder of fetched bundles.
        catalogue: lists the bundles of the registry.
        repository: the models that are served.
        orders: changes the repository.
        store: reads it.
        retire_after_s: a version is retired once no device has needed it for this many seconds; a device that has been
            silent for as long needs none.
        read: returns the model of a fetched bundle, blocking; raises `FirstlineError` if it cannot be served.
        clock: decides what is due.
    """

    fetched: FetchedBundles
    catalogue: CatalogueReader
    repository: Repository
    orders: Orders
    store: Store
    retire_after_s: float
    read: Callable[[Path], ServedModel]
    clock: Clock

    def __post_init__(self) -> None:
        self._fetches: dict[ModelKey, asyncio.Task[None]] = {}
        self._needed_s: dict[ModelKey, float] = {}
        self._failures: dict[ModelKey, str] = {}
        self._signed: set[ModelKey] = set()
        self._signed_version = 0
        wake = self.repository.pending.requested
        self._task = PeriodicTask("full models", self.update, interval_s=_INTERVAL_S, clock=self.clock, wake=wake)

    async def start(self) -> None:
        """Starts to call `update` from time to time."""
        await self._task.start()

    async def close(self) -> None:
        """Ends the calls of `update`, and the fetches in progress."""
        await self._task.close()
        await end_tasks(*self._fetches.values())

    async def prepare(self, definition: Definition) -> None:
        """Serves the full model that a rollout's devices will escalate to, before any device gets an offer.

        Raises:
            NotReadyError: the model is being fetched; retry.
            ConflictError: another full model is served under that version, or an operator unloaded the model.
            FirstlineError: the model cannot be fetched.
        """
        if definition.what is not UpdateKind.MODEL:
            return
        key = ModelKey(definition.bundle, definition.version)
        try:
            bundle = await self._listed(key)
        except NotFoundError:
            return  # each device reports it
        digest, served = bundle.release.full_digest, self.repository.models.get(key)
        if served is not None and served.digest != digest:
            raise ConflictError(
                f"This gateway serves {key.name} version {key.version} from {served.path}, with the full model "
                f"{served.digest[:12]}, and {digest[:12]} is signed: it would refuse devices. Put the signed one there."
            )
        if served is not None or not digest:
            return
        if key.name in self.repository.unloaded:
            load = f"POST /v2/repository/models/{key.name}/load"
            raise ConflictError(
                f"An operator unloaded {key.name} on this gateway; load it ({load}), then start its rollout."
            )
        fetch = self._fetch(key)
        await first_of(asyncio.shield(fetch), self.clock.sleep(_START_TIMEOUT_S))
        if not fetch.done():
            raise NotReadyError(
                f"The full model of {key.name} version {key.version} is being fetched and loaded; start the rollout "
                "again in a moment.",
                retry_after_s=_START_TIMEOUT_S,
            )
        await fetch

    async def update(self) -> None:
        """Fetches and serves the versions that are needed, and retires the others.

        Raises:
            FirstlineError: the store is unavailable.
        """
        now_s = self.clock.monotonic_s()
        since_s = self.clock.wall_s() - self.retire_after_s
        await self._read_signed()
        keys = self.repository.pending.take() | await self.store.read(partial(needed, since_s=since_s))
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}
        for key in sorted(keys - set(self.repository.models)):
            if key.name in self.repository.unloaded:
                continue
            try:
                if (await self._listed(key)).release.full_digest:
                    await asyncio.shield(self._fetch(key))
                self._failures.pop(key, None)
            except NotFoundError:
                pass  # not signed: the operator maintains the models folder
            except FirstlineError as error:
                if self._failures.get(key) != error.message:
                    log.error("full model not served", model=key.name, version=key.version, error=error.message)
                self._failures[key] = error.message
        self.repository.pending.offer(self._signed - self._failures.keys())
        for key in await asyncio.to_thread(self.fetched.keys):
            served = self.repository.models.get(key)
            if served is not None and served.path != self.fetched.path(key):
                continue  # the operator's own
            if key in keys or key in self._fetches:
                self._needed_s[key] = now_s
            elif now_s - self._needed_s.setdefault(key, now_s) >= self.retire_after_s:
                await self._retire(key)

    async def _read_signed(self) -> None:
        """Reads which versions with a full model are signed now."""
        found = await self.catalogue.current()
        if found.version != self._signed_version:
            manifests = {key: files[target_path(*key, MANIFEST_NAME)] for key, files in found.bundles.items()}
            self._signed = {key for key, manifest in manifests.items() if manifest.custom.get("full_digest")}
            self._signed_version = found.version
            self.repository.pending.offer(self._signed - self._failures.keys())

    async def _listed(self, key: ModelKey) -> ListedBundle:
        return find_bundle((await self.catalogue.current()).bundles.get(key, {}), *key)

    def _fetch(self, key: ModelKey) -> asyncio.Task[None]:
        """Returns the fetch of a version, which all callers share, and which continues when a caller leaves."""
        task = self._fetches.get(key)
        if task is None:
            task = self._fetches[key] = asyncio.create_task(self._fetch_and_serve(key))
            task.add_done_callback(partial(self._fetch_ended, key))
        return task

    def _fetch_ended(self, key: ModelKey, task: asyncio.Task[None]) -> None:
        del self._fetches[key]
        if not task.cancelled():
            task.exception()  # reported to the callers; if none is left, the next update retries

    async def _fetch_and_serve(self, key: ModelKey) -> None:
        path = self.fetched.path(key)
        if not self.fetched.has(key):
            path = await self.fetched.fetch(await self._listed(key))
        self._needed_s[key] = self.clock.monotonic_s()
        try:
            served = await asyncio.to_thread(self.read, path)
            await self.orders.add(served)
        except NotReadyError:  # the models in memory leave no room for it now: its files stay for the next attempt
            raise
        except FirstlineError:
            await asyncio.to_thread(self.fetched.remove, key)
            self._needed_s.pop(key, None)
            raise
        log.info("full model served for the fleet", model=key.name, version=key.version, digest=served.digest)

    async def _retire(self, key: ModelKey) -> None:
        await self.orders.retire(key, _RETIRED)
        await asyncio.to_thread(self.fetched.remove, key)
        self._needed_s.pop(key, None)
        log.info("full model retired", model=key.name, version=key.version)


class _ReportedModel(Struct):
    name: str
    version: int
    undone: bool = False


class _Models(Struct):
    """The models in a device's reported or desired document."""

    models: tuple[_ReportedModel, ...] = ()


def needed(connection: Connection, since_s: float) -> set[ModelKey]:
    """Returns the versions that devices run or are to run, and those that running rollouts bring.

    Args:
        connection: a snapshot of the store.
        since_s: wall time; a device that was last seen before needs nothing until it comes back.
    """
    documents = (type_coerce(column, JsonColumn(_Models)) for column in (DEVICES.c.reported, DEVICES.c.desired))
    query = select(*documents).where(DEVICES.c.last_seen_s >= since_s)
    models = (
        model
        for row in connection.execute(query)
        for document in row
        if document is not None
        for model in document.models
    )
    found = {ModelKey(model.name, model.version) for model in models if not model.undone}
    for rollout_id in records.active(connection):
        rollout = records.find(connection, rollout_id)
        if rollout is not None and rollout.definition.what is UpdateKind.MODEL:
            found.add(ModelKey(rollout.definition.bundle, rollout.definition.version))
    return found
