"""The models served, by name and version. `folder.py` reads them, `residency.py` decides which are in memory."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import EngineUnavailableError, FirstlineError, ModelLoadError, UnknownModelError, listed
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.select import RUNTIMES
from firstline_core.types import ModelKey, ModelMetadata

# ONNX Runtime keeps the weights of its file, and packs them once more for the processor: twice the file, and a little
# more. What runs take meanwhile comes on top.
_RESIDENT_FACTOR = 2.5
_RESIDENT_BASE_BYTES = 1 << 20
_RETRY_AFTER_S = 2.0
_VERSION_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One version of a bundle.

    Args:
        loaded: the full model; None where it runs elsewhere, or is not in memory.
        digest: the full model's.
        copies: how many times this process loads it: each local executor has a copy of its own. 0 if it runs
            only elsewhere: it takes no memory here, and can always be held.

    Attributes:
        input_names: of the bundle's inputs that the full model reads.
    """

    key: ModelKey
    path: Path
    manifest: Manifest
    loaded: LoadedModel | None
    digest: str
    copies: int = 1
    input_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_names", self.manifest.full_inputs)

    @property
    def full(self) -> Model:
        """The full model; a bundle without one is not served."""
        assert self.manifest.full is not None  # noqa: S101 (see `ModelsFolder.read`)
        return self.manifest.full

    @property
    def memory_bytes(self) -> int:
        """Estimated memory, from the size of its files: known before it is loaded, and always the same."""
        size_bytes = sum(artefact.size_bytes for artefact in self.full.artefacts)
        return self.copies * (int(_RESIDENT_FACTOR * size_bytes) + _RESIDENT_BASE_BYTES)


@dataclass(frozen=True, slots=True)
class RefusedBundle:
    """A folder that looks like a bundle and is not served; without a readable manifest its `key` stays None."""

    path: Path
    error: FirstlineError
    key: ModelKey | None = None


class Repository:
    """The served models. Names and versions are those of the manifests, not those of the folders.

    Attributes:
        models: by name and version; replaced as a whole by each change.
        refused: bundles that were invalid when the gateway started.
        away: versions that are known and not served, each with the reason.
        unloaded: names that an operator unloaded and has not loaded since.
        pending: versions that can be fetched once a request needs them.
    """

    def __init__(self, models: dict[ModelKey, ServedModel], refused: tuple[RefusedBundle, ...] = ()) -> None:
        self.refused = refused
        self.unloaded: set[str] = set()
        self.pending = PendingModels()
        self.away = {
            bundle.key: bundle.error.message
            for bundle in refused
            if bundle.key is not None and bundle.key not in models
        }
        self._serve(models)

    def _serve(self, models: dict[ModelKey, ServedModel]) -> None:
        self.models = models
        self._metadata: dict[ModelKey, ModelMetadata] = {}
        self._versions: dict[str, tuple[int, ...]] = {}
        self._current: dict[str, ServedModel] = {}
        for name, version in sorted(models):
            self._versions[name] = (*self._versions.get(name, ()), version)
            self._current[name] = models[ModelKey(name, version)]

    def put(self, served: ServedModel) -> None:
        """Serves a version from now on, in place of what was served as that."""
        self.away.pop(served.key, None)
        self._serve(self.models | {served.key: served})

    def take(self, key: ModelKey, why: str) -> None:
        """Serves a version no more."""
        self.away[key] = why
        self._serve({each: served for each, served in self.models.items() if each != key})

    def __iter__(self) -> Iterator[ServedModel]:
        """By name, then by version."""
        return (self.models[key] for key in sorted(self.models))

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of a bundle, the current one last.

        Raises:
            UnknownModelError: there is no such bundle.
        """
        try:
            return self._versions[name]
        except KeyError:
            for key, why in self.away.items():
                if key.name == name:
                    raise UnknownModelError(f"Model {shown(name)} is not served: {why.rstrip('.')}.") from None
            served = listed(name, self._versions, "it serves:")
            raise UnknownModelError(f"There is no model {shown(name)} on this gateway{served}") from None

    def resolve(self, name: str, version: str) -> ServedModel:
        """The model of a request; the version "" means the highest.

        Raises:
            UnknownModelError: there is no such bundle or version.
            EngineUnavailableError: there will be, soon.
        """
        if not version and (current := self._current.get(name)) is not None:
            return current
        try:
            versions = self.versions(name)
            for number in versions:
                if str(number) == version:
                    return self.models[ModelKey(name, number)]
            raise UnknownModelError(
                f"Model '{name}' has no version {shown(version)} on this gateway; "
                f"it serves: {', '.join(map(str, versions))}."
            )
        except UnknownModelError as error:
            pending = None if name in self.unloaded else self.pending.request(name, version)
            raise (pending or error) from None

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those names that no model has, be it served or refused."""
        return sorted(set(names).difference(key.name for key in (*self.models, *self.away)))

    def metadata(self, name: str, version: str) -> ModelMetadata:
        """Returns the V2 metadata of a model.

        Raises:
            UnknownModelError: there is no such bundle or version.
        """
        served = self.resolve(name, version)
        found = self._metadata.get(served.key)
        if found is None:
            found = self._metadata[served.key] = ModelMetadata(
                name=name,
                versions=tuple(map(str, self.versions(name))),
                platform=RUNTIMES[served.full.runtime].platform,
                inputs=served.manifest.input_tensors,
                outputs=served.manifest.task.outputs,
                labels=served.manifest.labels,
                files=served.manifest.file_inputs,
                task=served.manifest.task,
            )
        return found


def check_size(served: ServedModel, budget_bytes: int) -> None:
    """Checks whether a model fits into the budget at all; 0 means no limit.

    Raises:
        ModelLoadError: it does not fit.
    """
    if 0 < budget_bytes < served.memory_bytes:
        raise ModelLoadError(
            f"Version {served.key.version} of '{served.key.name}' takes {math.ceil(served.memory_bytes / (1 << 20))} "
            f"MiB of memory, more than models.memory_budget_mb allows for all ({budget_bytes >> 20} MiB)."
        )


def in_loading_order(models: Iterable[ServedModel]) -> list[ServedModel]:
    """Current versions first: they are what most requests are for."""
    ranked: list[tuple[int, ModelKey, ServedModel]] = []
    of_name: Counter[str] = Counter()
    for served in sorted(models, key=lambda served: served.key, reverse=True):
        ranked.append((of_name[served.key.name], served.key, served))
        of_name[served.key.name] += 1
    return [served for _, _, served in sorted(ranked, key=lambda each: each[:2])]


class PendingModels:
    """Notes requests for models that can be fetched. Belongs to one event loop.

    Attributes:
        requested: set when a request needs such a model; the fetching task clears it.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._available: frozenset[ModelKey] = frozenset()
        self._wanted: set[ModelKey] = set()

    def offer(self, keys: Iterable[ModelKey]) -> None:
        """Replaces the versions that can be fetched."""
        self._available = frozenset(keys)

    def request(self, name: str, version: str) -> EngineUnavailableError | None:
        """Notes that a request needs a version.

        Returns:
            The error to answer with, which asks the caller to retry; None if this version cannot be fetched.
        """
        if not (version.isascii() and version.isdigit() and len(version) <= _VERSION_DIGITS):
            return None
        key = ModelKey(name, int(version))
        if key not in self._available:
            return None
        self._wanted.add(key)
        self.requested.set()
        return EngineUnavailableError(
            f"The full model of {name} version {version} is being fetched for this gateway; send it again in a moment.",
            retry_after_s=_RETRY_AFTER_S,
        )

    def take(self) -> set[ModelKey]:
        """Returns the versions that requests have asked for since the last call."""
        keys, self._wanted = self._wanted, set()
        return keys
