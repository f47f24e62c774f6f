"""The models served: the bundles of a folder, by name and version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model
from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError, FirstlineError, ModelLoadError, UnknownModelError
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.select import PLATFORMS, RuntimeOptions
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelMetadata
from firstline_gateway.executors.base import ModelKey
from firstline_gateway.executors.calibration import measure

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One version of a bundle.

    Args:
        loaded: the full model; None where it runs elsewhere.
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
        assert self.manifest.full is not None  # noqa: S101 (see `_load`)
        return self.manifest.full


@dataclass(frozen=True, slots=True)
class RefusedBundle:
    """A folder that looked like a bundle and is not served."""

    path: Path
    error: FirstlineError


class Repository:
    """What is served. Names and versions are those of the manifests, whatever the folders are called."""

    def __init__(self, models: dict[ModelKey, ServedModel], refused: tuple[RefusedBundle, ...] = ()) -> None:
        self.models = models
        self.refused = refused
        self._versions: dict[str, tuple[int, ...]] = {}
        for name, version in sorted(models):
            self._versions[name] = (*self._versions.get(name, ()), version)

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


def load_repository(directory: Path, options: RuntimeOptions | None) -> Repository:
    """Opens every bundle in a folder and loads its full model; one that is no good is logged, the others are served.

    Args:
        directory: its subfolders, or their subfolders, are bundles; or it is a bundle itself.
        options: how the models run; None where they run elsewhere, so that their files need not be here.

    Raises:
        ConfigError: there is no such folder, or it cannot be read.
    """
    models: dict[ModelKey, ServedModel] = {}
    refused: list[RefusedBundle] = []
    for path in find_bundles(directory):
        try:
            served = _load(path, options, models)
        except FirstlineError as error:
            log.error("bundle refused", path=str(path), error=error.message)
            refused.append(RefusedBundle(path, error))
        else:
            models[served.key] = served
            log.info(
                "model loaded" if options is not None else "model declared",
                model=served.key.name,
                version=served.key.version,
                digest=served.digest,
            )
    return Repository(models, tuple(refused))


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


def _load(path: Path, options: RuntimeOptions | None, taken: dict[ModelKey, ServedModel]) -> ServedModel:
    bundle = open_bundle(path)
    manifest = bundle.manifest
    key = ModelKey(manifest.name, manifest.version)
    if key in taken:
        raise ConfigError(
            f"{path} and {taken[key].path} are both version {key.version} of '{key.name}'; remove one of them."
        )
    if manifest.full is None:
        raise ModelLoadError(f"The bundle {path} has no full model, and a gateway runs nothing else.")
    loaded = None
    if options is not None:
        loaded = load_model(bundle, manifest.full, options)
        loaded.batch_s = measure(loaded, manifest.input, manifest.full)
    return ServedModel(key, path, manifest, loaded, manifest.full.digest)
