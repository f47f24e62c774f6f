"""Loads and unloads models while the agent runs, on request of an operator."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from firstline_core.bundle.store import same_version
from firstline_core.errors import RequestError, UnknownModelError, UpdateError, did_you_mean
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.memory import release_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_edge.models.copies import BundleCopies
from firstline_edge.models.loading import NamedBundle, bundle_paths, named_bundles
from firstline_edge.models.models import DeviceModel, Models

log = logger(__name__)

# Requests in progress get this time to end before the call returns.
_END_S = 10.0
_UNLOADED = "unloaded; POST /v2/repository/models/{name}/load has the device hold it again"


class CertificateWatch(Protocol):
    """Tests the certificates of loaded variants by field audits, which implement it."""

    def watch(self, model: DeviceModel) -> None: ...
    def unwatch(self, model: DeviceModel) -> None: ...


@dataclass(eq=False)
class Reloading:
    """Changes the loaded models of a device, one change at a time.

    Args:
        models: changed here.
        certificates: notified of the variants that start and stop answering.
        directories: bundles, or folders of bundles.
        load_bundle: opens, loads and measures one bundle; blocks.
        copies: stores a copy of each bundle that works.
        replacements: folders of bundles that replace those of the same name in `directories`.
    """

    models: Models
    certificates: CertificateWatch
    directories: Sequence[Path]
    load_bundle: Callable[[Path], DeviceModel]
    copies: BundleCopies
    _: KW_ONLY
    replacements: dict[str, Path] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def load(self, name: str) -> None:
        """See `DataPlane.load`. Versions that are no longer in the folders are unloaded."""
        async with self._turn:
            bundles = await asyncio.to_thread(self._bundles_of, name)
            present = [device_model for device_model in self.models.all if device_model.manifest.name == name]
            if not bundles and not present:
                raise UnknownModelError(
                    f"There is no bundle {shown(name)} in models.directories"
                    f"{did_you_mean(name, {each.manifest.name for each in self.models.all})} To add it, put it "
                    "there, then load it."
                )
            problems = [] if bundles else [f"There is no bundle {shown(name)} in models.directories any more."]
            loaded: dict[int, Path] = {}
            for _, version, path in bundles:
                if version in loaded:
                    problems.append(same_version(path, loaded[version], ModelKey(name, version)))
                    continue
                try:
                    self._replace(await asyncio.to_thread(self._opened, path))
                    loaded[version] = path
                except (UpdateError, RequestError) as error:
                    problems.append(error.message)
                    if self.models.find(name, str(version)) is None:
                        self.models.away[name, version] = error.message
            here = {bundle.version for bundle in bundles}
            for device_model in present if here else ():
                if device_model.manifest.version not in here:
                    self._let_go(device_model, "its bundle is no longer in models.directories")
            await asyncio.to_thread(release_freed_memory)
        if problems:
            raise RequestError(f"Model {shown(name)}: {' '.join(problems)} The earlier models stay loaded.")

    async def unload(self, name: str) -> None:
        """See `DataPlane.unload`. Requests for it go to the gateway, as for any model that is not loaded."""
        async with self._turn:
            present = [device_model for device_model in self.models.all if device_model.manifest.name == name]
            if not present:
                raise self.models.unknown(name, "")
            ended = [_end_of(device_model) for device_model in present]
            for device_model in present:
                self._let_go(device_model, _UNLOADED.format(name=name))
            del device_model
            present.clear()
            gc.collect()
            try:
                async with asyncio.timeout(_END_S):
                    for end in ended:
                        await end.wait()
            except TimeoutError:
                log.warning("unloaded model still in use", model=name, after_s=_END_S)
            await asyncio.to_thread(release_freed_memory)

    async def replace(self, name: str, device_model: DeviceModel | None) -> None:
        """Makes one bundle the only one that answers for a name; requests in progress keep their model.

        Args:
            name: of the model.
            device_model: answers from now on; None if no model has to.
        """
        async with self._turn:
            present = [model for model in self.models.all if model.manifest.name == name and model is not device_model]
            path = device_model.bundle.path if device_model is not None else None
            if path is None or path == self.configured_path(name):
                self.replacements.pop(name, None)
            else:
                self.replacements[name] = path
            if device_model is not None:
                self._replace(device_model)
            for model in present:
                if device_model is None or model.version != device_model.version:
                    self._let_go(
                        model, f"the fleet runs {'another version' if device_model is None else device_model.version}"
                    )
            del present
            await asyncio.to_thread(release_freed_memory)

    def configured_path(self, name: str) -> Path | None:
        """Returns the folder of the newest bundle of a name in `directories`; None if there is none."""
        versions = [bundle for bundle in named_bundles(bundle_paths(self.directories)) if bundle.name == name]
        return max(versions).path if versions else None

    def _bundles_of(self, name: str) -> list[NamedBundle]:
        paths = [self.replacements[name]] if name in self.replacements else bundle_paths(self.directories)
        return [bundle for bundle in named_bundles(paths) if bundle.name == name]

    def _opened(self, path: Path) -> DeviceModel:
        """Returns a bundle that can answer requests.

        Raises:
            UpdateError: it cannot be trusted.
            RequestError: none of its edge variants runs here.
        """
        device_model = self.load_bundle(path)
        if device_model.edge is None and device_model.manifest.edge:
            raise RequestError(device_model.problem)
        if device_model.edge is not None:
            self.copies.keep(device_model.bundle)
        return device_model

    def _replace(self, device_model: DeviceModel) -> None:
        before = self.models.put(device_model)
        if before is not None:
            self._unwatch(before)
        for variant in device_model.loaded_variants:
            self.certificates.watch(variant)

    def _let_go(self, device_model: DeviceModel, why: str) -> None:
        self.models.take(device_model, why)
        self._unwatch(device_model)
        log.info("model unloaded", model=device_model.manifest.name, version=device_model.version)

    def _unwatch(self, device_model: DeviceModel) -> None:
        for variant in {device_model, *device_model.loaded_variants}:
            self.certificates.unwatch(variant)


def _end_of(device_model: DeviceModel) -> asyncio.Event:
    """Returns an event that is set once no request uses the model any more."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    if device_model.edge is None:
        ended.set()
        return ended

    def set_ended() -> None:
        with suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(ended.set)

    weakref.finalize(device_model.edge.loaded, set_ended).atexit = False
    return ended
