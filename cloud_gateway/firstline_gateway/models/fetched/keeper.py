"""Full models come when the fleet needs them, and go when no device has needed them for a while.

They are fetched from this gateway's own registry: what is signed there and nothing else. A request for one that is
signed and not here yet, as where another replica started the rollout, has it fetched and is told to come back: its
device answers for now and promises a correction. A version that lies in `models.directory` is whoever put it there's,
and is neither fetched nor retired.
"""

from __future__ import annotations

import asyncio
from functools import partial

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.clock import Clock, first_of
from firstline_core.errors import ConflictError, EngineUnavailableError, FirstlineError, NotFoundError, NotReadyError
from firstline_core.fleet.target import ListedBundle, listed, target_path
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.models.fetched.needs import needed
from firstline_gateway.models.fetched.shelf import Shelf
from firstline_gateway.models.folder import read_bundle
from firstline_gateway.models.repository import Repository
from firstline_gateway.models.residency.orders import Orders
from firstline_gateway.registry.bundles import Bundles
from firstline_gateway.rollouts.definition import Definition
from firstline_gateway.rollouts.subject import Subject
from firstline_gateway.store.readers import Readers

_LOOK_S = 10.0
_RETRY_S = 2.0
# For whoever starts a rollout, before they are told to come back.
_PATIENCE_S = 20.0
_RETIRED = "no device needs it any more; it is fetched again when one does"

log = logger(__name__)


class FullModels:
    """Belongs to one event loop.

    Args:
        shelf: where they are put.
        bundles: that the registry lists.
        repository: what is served.
        orders: changes that.
        readers: of the store.
        retire_after_s: so long no device has needed a version before it goes; and a device that was not heard of for so
            long needs none.
        must_be_whole: whether models run here, and need their files.
        clock: looks are by it.
    """

    def __init__(
        self,
        shelf: Shelf,
        bundles: Bundles,
        repository: Repository,
        orders: Orders,
        readers: Readers,
        *,
        retire_after_s: float,
        must_be_whole: bool,
        clock: Clock,
    ) -> None:
        self._shelf = shelf
        self._bundles = bundles
        self._repository = repository
        self._orders = orders
        self._readers = readers
        self._retire_after_s = retire_after_s
        self._must_be_whole = must_be_whole
        self._clock = clock
        self._bringing: dict[ModelKey, asyncio.Task[None]] = {}
        self._needed_s: dict[ModelKey, float] = {}
        self._said: dict[ModelKey, str] = {}
        self._signed: set[ModelKey] = set()
        self._signed_version = 0
        self._asked: set[ModelKey] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        repository.on_missing = self._missing

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        tasks = [*self._bringing.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def before(self, definition: Definition) -> None:
        """Has what a rollout's devices will escalate to served here, before any of them is told.

        Raises:
            NotReadyError: it is on its way; come back.
            ConflictError: what is served under that version is another full model; somebody had it unloaded.
            FirstlineError: it cannot be had.
        """
        if definition.what is not Subject.MODEL:
            return
        key = ModelKey(definition.bundle, definition.version)
        try:
            bundle = await self._listed(key)
        except NotFoundError:
            return  # devices will say so, each by itself
        digest, served = bundle.release.full_digest, self._repository.models.get(key)
        if served is not None and served.digest != digest:
            raise ConflictError(
                f"This gateway serves {key.name} version {key.version} from {served.path}, with the full model "
                f"{served.digest[:12]}, and {digest[:12]} is signed: it would refuse devices. Put the signed one there."
            )
        if served is not None or not digest:
            return
        if key.name in self._orders.unloaded:
            load = f"POST /v2/repository/models/{key.name}/load"
            raise ConflictError(
                f"Somebody had {key.name} unloaded on this gateway; have it loaded ({load}), then start its rollout."
            )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._brought(key)
        except TimeoutError:
            raise NotReadyError(
                f"The full model of {key.name} version {key.version} is being fetched and loaded; start the rollout "
                "again in a moment.",
                retry_after_s=_PATIENCE_S,
            ) from None

    async def look(self) -> None:
        """Fetches and serves what is needed, retires what is not.

        Raises:
            FirstlineError: the store is away.
        """
        now_s = self._clock.monotonic_s()
        since_s = self._clock.wall_s() - self._retire_after_s
        await self._take_up_signed()
        asked, self._asked = self._asked, set()
        wanted = asked | await self._readers.ask(partial(needed, since_s=since_s))
        self._said = {key: said for key, said in self._said.items() if key in wanted}
        for key in sorted(wanted - set(self._repository.models)):
            if key.name in self._orders.unloaded:
                continue  # at somebody's word, until they have it loaded
            try:
                if (await self._listed(key)).release.full_digest:
                    await self._brought(key)
                self._said.pop(key, None)
            except NotFoundError:
                pass  # nobody signed it: somebody keeps the models folder by hand
            except FirstlineError as error:
                if self._said.get(key) != error.message:
                    log.error("full model not served", model=key.name, version=key.version, error=error.message)
                self._said[key] = error.message
        for key in [key for key in self._repository.models if self._is_ours(key)]:
            if key in wanted:
                self._needed_s[key] = now_s
            elif now_s - self._needed_s.setdefault(key, now_s) >= self._retire_after_s:
                await self._retire(key)

    def _missing(self, name: str, version: str) -> FirstlineError | None:
        """What a request is told whose model is not served; None where it never will be."""
        if not (version.isascii() and version.isdigit() and len(version) <= 18):
            return None
        key = ModelKey(name, int(version))
        if key not in self._signed or key in self._said or name in self._orders.unloaded:
            return None
        self._asked.add(key)
        self._wake.set()
        return EngineUnavailableError(
            f"The full model of {name} version {version} is being fetched for this gateway; send it again in a moment.",
            retry_after_s=_RETRY_S,
        )

    async def _take_up_signed(self) -> None:
        """Which versions with a full model are signed now."""
        found = await self._bundles.catalogue()
        if found.version != self._signed_version:
            manifests = {
                ModelKey(*key): files[target_path(*key, MANIFEST_NAME)] for key, files in found.bundles.items()
            }
            self._signed = {key for key, manifest in manifests.items() if manifest.custom.get("full_digest")}
            self._signed_version = found.version

    def _is_ours(self, key: ModelKey) -> bool:
        return self._repository.models[key].path == self._shelf.path(key)

    async def _listed(self, key: ModelKey) -> ListedBundle:
        return listed((await self._bundles.catalogue()).bundles.get(key, {}), *key)

    async def _brought(self, key: ModelKey) -> None:
        """Waits for one fetch that all who wait share, and that goes on where they leave."""
        task = self._bringing.get(key)
        if task is None:
            task = self._bringing[key] = asyncio.create_task(self._bring(key))
            task.add_done_callback(partial(self._has_ended, key))
        await asyncio.shield(task)

    def _has_ended(self, key: ModelKey, task: asyncio.Task[None]) -> None:
        del self._bringing[key]
        if not task.cancelled():
            task.exception()  # whoever waits hears of it; with nobody left, the next look does

    async def _bring(self, key: ModelKey) -> None:
        path = self._shelf.path(key)
        if not self._shelf.has(key):
            path = await self._shelf.fetch(await self._listed(key))
        try:
            served = await asyncio.to_thread(partial(read_bundle, path, must_be_whole=self._must_be_whole))
            await self._orders.add(served)
        except FirstlineError:
            await asyncio.to_thread(self._shelf.remove, key)
            raise
        self._needed_s[key] = self._clock.monotonic_s()
        log.info("full model served for the fleet", model=key.name, version=key.version, digest=served.digest)

    async def _retire(self, key: ModelKey) -> None:
        await self._orders.retire(key, _RETIRED)
        await asyncio.to_thread(self._shelf.remove, key)
        self._needed_s.pop(key, None)
        log.info("full model retired", model=key.name, version=key.version)

    async def _run(self) -> None:
        trouble = ""
        while True:
            try:
                await self.look()
                trouble = ""
            except FirstlineError as error:
                if error.message != trouble:
                    log.error("full models not looked after", error=error.message)
                trouble = error.message
            except Exception:  # the outermost loop of a task that must never end
                log.exception("full models not looked after")
            await first_of(self._wake.wait(), self._clock.sleep(_LOOK_S))
            self._wake.clear()
