"""The models served: the bundles of a folder, by name and version. Which are in memory, `residency.py` decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model
from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.bundle.store import declared, open_bundle
from firstline_core.errors import ConfigError, FirstlineError, ModelLoadError, UnknownModelError
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.select import PLATFORMS, RuntimeOptions
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelMetadata
from firstline_gateway.executors.base import ModelKey
from firstline_gateway.executors.calibration import measure

log = logger(__name__)


# Measured with ONNX Runtime on networks of 4 to 170 MB: it keeps the weights of its file, and packs them once more for
# the processor: 2.0 to 2.4 times the file. What runs take meanwhile comes on top.
_RESIDENT_FACTOR = 2.5
_RESIDENT_BASE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One version of a bundle.

    Args:
        loaded: the full model; None where it runs elsewhere, or is not in memory.
        digest: the full model's.
    """

    key: ModelKey
    path: Path
    manifest: Manifest
    loaded: LoadedModel | None
    digest: str

    @property
    def full(self) -> Model:
        """The full model; a bundle without one is not served."""
        assert self.manifest.full is not None  # noqa: S101 (see `read_bundle`)
        return self.manifest.full

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, by the size of its files: known before it is loaded, and the same every time."""
        size_bytes = sum(artefact.size_bytes for artefact in self.full.artefacts)
        return int(_RESIDENT_FACTOR * size_bytes) + _RESIDENT_BASE_BYTES


@dataclass(frozen=True, slots=True)
class RefusedBundle:
    """A folder that looked like a bundle and is not served; `key` is None where its manifest cannot be read."""

    path: Path
    error: FirstlineError
    key: ModelKey | None = None


class Repository:
    """What is served. Names and versions are those of the manifests, whatever the folders are called.

    Attributes:
        models: by name and version; replaced as a whole by each change.
        refused: bundles that were no good when the gateway started.
        away: versions that are known and not served, each with the reason.
    """

    def __init__(self, models: dict[ModelKey, ServedModel], refused: tuple[RefusedBundle, ...] = ()) -> None:
        self.refused = refused
        self.away = {
            bundle.key: bundle.error.message
            for bundle in refused
            if bundle.key is not None and bundle.key not in models
        }
        self._serve(models)

    def _serve(self, models: dict[ModelKey, ServedModel]) -> None:
        self.models = models
        self._versions: dict[str, tuple[int, ...]] = {}
        for name, version in sorted(models):
            self._versions[name] = (*self._versions.get(name, ()), version)

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
                    raise UnknownModelError(f"Model {shown(name)} is not served: {why}") from None
            served = ", ".join(self._versions) or "none"
            raise UnknownModelError(f"There is no model {shown(name)} on this gateway; it serves: {served}.") from None

    def resolve(self, name: str, version: str) -> ServedModel:
        """The model of a request; the version "" means the highest.

        Raises:
            UnknownModelError: there is no such bundle or version.
        """
        versions = self.versions(name)
        if not version:
            return self.models[ModelKey(name, versions[-1])]
        for known in versions:
            if str(known) == version:
                return self.models[ModelKey(name, known)]
        raise UnknownModelError(
            f"Model '{name}' has no version {shown(version)} on this gateway; "
            f"it serves: {', '.join(map(str, versions))}."
        )

    def metadata(self, name: str, version: str) -> ModelMetadata:
        """What V2 says of a model.

        Raises:
            UnknownModelError: there is no such bundle or version.
        """
        served = self.resolve(name, version)
        return ModelMetadata(
            name=name,
            versions=tuple(map(str, self.versions(name))),
            platform=PLATFORMS[served.full.runtime],
            inputs=(served.manifest.input_spec,),
            outputs=(served.manifest.output_spec,),
            labels=served.manifest.labels,
        )


def load_repository(directory: Path, options: RuntimeOptions | None, *, budget_bytes: int = 0) -> Repository:
    """Opens every bundle in a folder and loads its full model; one that is no good is logged, the others are served.

    Args:
        directory: its subfolders, or their subfolders, are bundles; or it is a bundle itself.
        options: how the models run; None where they are only declared, because they run elsewhere, or load later.
        budget_bytes: what all models may take, and 0 is no limit; of those that do not fit together newer versions come
            first, one that does not fit by itself is refused.

    Raises:
        ConfigError: there is no such folder, or it cannot be read.
    """
    models: dict[ModelKey, ServedModel] = {}
    refused: list[RefusedBundle] = []

    def refuse(path: Path, error: FirstlineError, key: ModelKey | None) -> None:
        log.error("bundle refused", path=str(path), error=error.message)
        refused.append(RefusedBundle(path, error, key))

    for path in find_bundles(directory):
        try:
            served = read_bundle(path, must_be_whole=options is not None)
            check_size(served, budget_bytes)
            if served.key in models:
                raise _twice(path, models[served.key])
        except FirstlineError as error:
            refuse(path, error, _key_at(path))
        else:
            models[served.key] = served
    taken_bytes = 0
    for served in in_loading_order(models.values()):
        taken_bytes += served.memory_bytes
        if options is None or 0 < budget_bytes < taken_bytes:
            taken_bytes -= served.memory_bytes
            log.info("model declared", model=served.key.name, version=served.key.version, digest=served.digest)
            continue
        try:
            models[served.key] = replace(served, loaded=load_full(served, options))
        except FirstlineError as error:
            taken_bytes -= served.memory_bytes
            del models[served.key]
            refuse(served.path, error, served.key)
        else:
            log.info("model loaded", model=served.key.name, version=served.key.version, digest=served.digest)
    return Repository(models, tuple(refused))


def check_size(served: ServedModel, budget_bytes: int) -> None:
    """Whether there will ever be room for a model; 0 is no limit.

    Raises:
        ModelLoadError: there will not.
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


def read_bundle(path: Path, *, must_be_whole: bool) -> ServedModel:
    """A bundle of which nothing is loaded yet.

    Args:
        path: its folder.
        must_be_whole: whether the full model's files have to be there.

    Raises:
        IntegrityError: the folder is no bundle, or a file is not what its manifest says.
        ModelLoadError: it has no full model.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    if manifest.full is None:
        raise ModelLoadError(f"The bundle {path} has no full model, and a gateway runs nothing else.")
    if must_be_whole and (missing := bundle.missing(manifest.full)):
        raise ModelLoadError(f"Model '{manifest.full.id}' cannot be loaded: {path} has no {', '.join(missing)}.")
    return ServedModel(ModelKey(manifest.name, manifest.version), path, manifest, None, manifest.full.digest)


def load_full(served: ServedModel, options: RuntimeOptions) -> LoadedModel:
    """The full model of a bundle that was read before; blocks.

    Raises:
        ModelLoadError: it does not load, or its files are others than when it was read.
        IntegrityError: its files are damaged.
    """
    bundle = open_bundle(served.path)
    full = bundle.manifest.full
    if full is None or bundle.manifest != served.manifest:
        raise ModelLoadError(
            f"The bundle {served.path} has changed since it was read; have it read anew with POST "
            f"/v2/repository/models/{served.key.name}/load."
        )
    loaded = load_model(bundle, full, options)
    loaded.batch_s = measure(loaded, bundle.manifest.input, full)
    return loaded


def named(directory: Path, name: str, *, must_be_whole: bool) -> tuple[list[ServedModel], list[RefusedBundle]]:
    """All versions of one bundle in a folder, and what should have been one; blocks.

    Raises:
        ConfigError: there is no such folder, or it cannot be read.
    """
    found: dict[ModelKey, ServedModel] = {}
    refused: list[RefusedBundle] = []
    for path in find_bundles(directory):
        key = _key_at(path)
        if (key.name if key is not None else None) != name and (key is not None or name not in path.parts[-2:]):
            continue
        try:
            served = read_bundle(path, must_be_whole=must_be_whole)
            if served.key in found:
                raise _twice(path, found[served.key])
        except FirstlineError as error:
            refused.append(RefusedBundle(path, error, key))
        else:
            found[served.key] = served
    return list(found.values()), refused


def _key_at(path: Path) -> ModelKey | None:
    found = declared(path)
    return ModelKey(*found) if found is not None else None


def _twice(path: Path, other: ServedModel) -> ConfigError:
    return ConfigError(
        f"{path} and {other.path} are both version {other.key.version} of '{other.key.name}'; remove one of them."
    )


def find_bundles(directory: Path) -> list[Path]:
    """The folders with a manifest: `directory`, its subfolders and theirs, in order; hidden ones are passed over.

    A subfolder that cannot be looked into is among them: as a bundle it is refused, by its name.

    Raises:
        ConfigError: there is no such folder, or it cannot be read.
    """
    try:
        if (directory / MANIFEST_NAME).exists():
            return [directory]
        folders = _folders(directory)
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no models folder {directory}; create it, or name another with models.directory."
        ) from error
    except OSError as error:
        raise ConfigError(f"The models folder {directory} cannot be read: {error.strerror}.") from error
    return [bundle for folder in folders for bundle in _bundles_in(folder)]


def _bundles_in(folder: Path) -> list[Path]:
    try:
        if (folder / MANIFEST_NAME).exists():
            return [folder]
        return [inner for inner in _folders(folder) if _may_be_bundle(inner)]
    except OSError:
        return [folder]


def _may_be_bundle(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_NAME).exists()
    except OSError:
        return True


def _folders(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
