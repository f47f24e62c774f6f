"""Finds, reads and loads the bundles of the models folder; `repository.py` holds those that are served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import find_bundles, key_at, open_bundle, same_version
from firstline_core.errors import ConfigError, FirstlineError, ModelLoadError
from firstline_core.runtime.batch_times import GAIN
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.files import unreadable
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey
from firstline_gateway.models.repository import RefusedBundle, Repository, ServedModel, check_size, in_loading_order

log = logger(__name__)

LARGEST_ROWS = 64
BUDGET_S = 0.1
"""Seconds for measuring a loaded model: after it no larger batch is measured. A slow model gains nothing by them."""
_RUNS = 5


@dataclass(frozen=True, slots=True)
class ModelsFolder:
    """The bundles that a gateway can serve.

    Args:
        directory: its subfolders, or their subfolders, are bundles; or it is a bundle itself.
        fetched: a folder of bundles that came from the registry; one that `directory` has too is not looked at.
        must_be_whole: whether `find` and `read` refuse a bundle without the files of its full model.
        copies_of: returns how many times this process loads a model, by its name.
    """

    directory: Path
    fetched: Path | None = None
    must_be_whole: bool = True
    copies_of: Callable[[str], int] = lambda _: 1

    def load(self, options: RuntimeOptions | None, budget_bytes: int = 0) -> Repository:
        """Opens every bundle and loads its full model; logs and skips invalid ones.

        Args:
            options: how the models run; None where they are only declared, because they run elsewhere, or load later.
            budget_bytes: memory of all models, or 0 for no limit; if they do not fit together newer versions come
                first, and one that does not fit alone is refused.

        Raises:
            ConfigError: there is no such folder, or it cannot be read.
        """
        models, refused = self._read(self._paths(), must_be_whole=options is not None, budget_bytes=budget_bytes)
        taken_bytes = 0
        for served in in_loading_order(models.values()):
            fits = not budget_bytes or taken_bytes + served.memory_bytes <= budget_bytes
            if options is None or not served.copies or not fits:
                log.info("model declared", model=served.key.name, version=served.key.version, digest=served.digest)
                continue
            try:
                models[served.key] = replace(served, loaded=load_full(served, options))
            except FirstlineError as error:
                del models[served.key]
                refused.append(_refused(served.path, error, served.key))
            else:
                taken_bytes += served.memory_bytes
                log.info("model loaded", model=served.key.name, version=served.key.version, digest=served.digest)
        return Repository(models, tuple(refused))

    def find(self, name: str) -> tuple[list[ServedModel], list[RefusedBundle]]:
        """Returns all versions of one bundle, and what should have been one; blocks. See `load`.

        Raises:
            ConfigError: there is no such folder, or it cannot be read.
        """
        paths = [
            path
            for path in self._paths()
            if (key.name == name if (key := key_at(path)) is not None else name in path.parts[-2:])
        ]
        found, refused = self._read(paths, must_be_whole=self.must_be_whole)
        return list(found.values()), refused

    def read(self, path: Path) -> ServedModel:
        """Returns a bundle of which nothing is loaded yet.

        Raises:
            IntegrityError: the folder is not a bundle, or a file differs from its manifest.
            ModelLoadError: it has no full model.
        """
        return self._bundle(path, must_be_whole=self.must_be_whole)

    def _paths(self) -> list[Path]:
        fetched = self.fetched
        return [*_bundle_paths(self.directory), *(_bundle_paths(fetched) if fetched and fetched.is_dir() else ())]

    def _read(
        self, paths: Iterable[Path], *, must_be_whole: bool, budget_bytes: int = 0
    ) -> tuple[dict[ModelKey, ServedModel], list[RefusedBundle]]:
        """Returns the bundles in these folders, and those that are refused; see `load`."""
        found: dict[ModelKey, ServedModel] = {}
        refused: list[RefusedBundle] = []
        for path in paths:
            try:
                served = self._bundle(path, must_be_whole=must_be_whole)
                if served.key in found and path.parent == self.fetched:
                    continue
                check_size(served, budget_bytes)
                if served.key in found:
                    raise ConfigError(same_version(path, found[served.key].path, served.key))
            except FirstlineError as error:
                refused.append(_refused(path, error, key_at(path)))
            else:
                found[served.key] = served
        return found, refused

    def _bundle(self, path: Path, *, must_be_whole: bool) -> ServedModel:
        bundle = open_bundle(path)
        manifest = bundle.manifest
        if manifest.full is None:
            raise ModelLoadError(f"The bundle {path} has no full model, and a gateway runs nothing else.")
        key, copies = ModelKey(manifest.name, manifest.version), self.copies_of(manifest.name)
        if must_be_whole and copies and (missing := bundle.missing(manifest.full)):
            raise ModelLoadError(f"Model '{manifest.full.id}' cannot be loaded: {path} has no {', '.join(missing)}.")
        return ServedModel(key, path, manifest, None, manifest.full_digest, copies)


def _refused(path: Path, error: FirstlineError, key: ModelKey | None) -> RefusedBundle:
    """Logs a refusal at once: to load the other models may take minutes."""
    log.error("bundle refused", path=str(path), error=error.message)
    return RefusedBundle(path, error, key)


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
            f"The bundle {served.path} has changed since it was read; reload it with POST "
            f"/v2/repository/models/{served.key.name}/load."
        )
    loaded = load_model(bundle, full, options)
    loaded.batch_s, loaded.row_s = measure(loaded), measure_row(loaded)
    return loaded


def _bundle_paths(directory: Path) -> list[Path]:
    """Returns the bundles of a folder.

    Raises:
        ConfigError: there is no such folder, or it cannot be read.
    """
    try:
        return find_bundles(directory)
    except FileNotFoundError as error:
        raise ConfigError(
            f"models.directory: the folder {directory} does not exist; create it, or name another."
        ) from error
    except OSError as error:
        raise ConfigError(f"models.directory: {directory} {unreadable(error)}") from error


def measure(model: LoadedModel) -> dict[int, float]:
    """Seconds that batches take, by their rows: 1, 2, 4, ... up to the size from which on a row gets no cheaper.

    Args:
        model: loaded.

    Returns:
        Nothing where what a row takes depends on the row (free sizes; images, audio and text), or
        where the model does not take several rows at once.
    """
    inputs = model.made_up_inputs(typical=False)
    if inputs is None or any(each.spec.kind != "tensor" for each in model.inputs):
        return {}

    def run(rows: int) -> None:
        model.compute(model.prepare({name: np.repeat(array, rows, axis=0) for name, array in inputs.items()}))

    try:
        return calibrate(run)
    except FirstlineError:  # an input of zeros may be none of its own; the first requests tell
        return {}


def measure_row(model: LoadedModel) -> float:
    """Returns the least seconds of some runs of one prepared row, for models of images; 0 if that is not known.

    Args:
        model: loaded.
    """
    inputs = model.made_up_inputs(typical=False)
    if inputs is None or not model.decodes_images:
        return 0.0
    try:
        rows = model.prepare(inputs)
        return _least_s(lambda _: model.compute(rows), 1, time.perf_counter, time.perf_counter() + BUDGET_S)
    except FirstlineError:  # an input of zeros may be none of its own
        return 0.0


def calibrate(run: Callable[[int], object], now_s: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """The least that a batch takes of a few runs, by its rows; see `measure`.

    Args:
        run: runs a batch with the given number of rows.
        now_s: a monotonic clock.
    """
    found: dict[int, float] = {}
    end_s, rows = now_s() + BUDGET_S, 1
    run(rows)  # the first run of all takes what is taken once
    while rows <= LARGEST_ROWS:
        found[rows] = _least_s(run, rows, now_s, end_s)
        gains = rows == 1 or found[rows // 2] / (rows // 2) >= GAIN * found[rows] / rows
        if not gains or now_s() >= end_s:
            break
        rows *= 2
    return found


def _least_s(run: Callable[[int], object], rows: int, now_s: Callable[[], float], end_s: float) -> float:
    least_s = float("inf")
    for _ in range(_RUNS):
        began_s = now_s()
        run(rows)
        ended_s = now_s()
        least_s = min(least_s, ended_s - began_s)
        if ended_s >= end_s:
            break
    return least_s
