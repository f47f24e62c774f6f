"""Opens bundles, and loads and measures their edge variants.

If no edge variant of a bundle loads, its requests are `heavy`: they go to the cloud with its version and the full
model's digest. A bundle that cannot be trusted is not used at all. `status` reports both.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import Manifest, Model, certificate_problem, valid_certificate
from firstline_core.bundle.store import Bundle, find_bundles, key_at, open_bundle, same_version
from firstline_core.errors import FirstlineError, UpdateError
from firstline_core.profile.profile import Profile
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.files import unreadable
from firstline_core.tasks.base import Scores
from firstline_core.telemetry.logs import logger
from firstline_core.types import Arrays, ModelKey, payload_bytes
from firstline_edge.models.copies import BundleCopies
from firstline_edge.models.models import DeviceModel, EdgeModel, Models, RefusedBundle, RelativeRunTimes
from firstline_edge.models.profiles import Profiles, fastest_options, known_point
from firstline_edge.models.workers import Workers

log = logger(__name__)

_MEASURED_RUNS = 5

OptionsByModel = Callable[[Model], RuntimeOptions]
"""Returns the options of the runtime for a variant."""


LadderLoader = Callable[[Bundle, EdgeModel, Callable[[Model], EdgeModel], Profile | None], DeviceModel]
"""Loads the other variants of a bundle, and returns the one to use.

Takes the bundle, the first variant that loaded, a function that loads another variant, and the bundle's profile on this
device, or None.
"""


def open_models(
    directories: Sequence[Path],
    load_bundle: Callable[[Path], DeviceModel],
    copies: BundleCopies | None = None,
    installed: Sequence[DeviceModel] = (),
) -> Models:
    """Opens every bundle below `directories` and loads the variants that run here. Never raises for a bad bundle.

    Args:
        directories: bundles, or folders of bundles.
        load_bundle: loads one bundle; see the function of that name.
        copies: stores a copy of each bundle that works, and returns it if the files are damaged.
        installed: models that replace bundles of the same name.
    """
    models: list[DeviceModel] = list(installed)
    installed_names = {model.manifest.name for model in installed}
    problems: list[RefusedBundle] = []
    paths = bundle_paths(directories)
    if copies is not None:
        resolved = {path.resolve() for path in paths}
        paths += [path for path in copies.sources(directories) if path not in resolved]
        copies.prune(paths)
    loaded: dict[ModelKey, Path] = {}
    for path in paths:
        key = key_at(path)
        if key is not None and key.name in installed_names:
            continue
        if key is not None and key in loaded:
            problems.append(_refused(path, same_version(path, loaded[key], key)))
            continue
        try:
            models.append(load_bundle(path))
            if key is not None:
                loaded[key] = path
            if copies is not None and models[-1].edge is not None:
                copies.keep(models[-1].bundle)
        except UpdateError as error:
            message = error.message
            if (copy := _copy_of(path, load_bundle, copies)) is not None:
                models.append(copy)
                message += f" A copy of version {copy.version} answers instead."
            problems.append(_refused(path, message))
    problems += [_without_bundle(path, why) for path in directories if (why := missing_bundle(path))]
    return Models(models, problems)


def _refused(path: Path, message: str) -> RefusedBundle:
    log.error("bundle unusable", path=str(path), error=message)
    return RefusedBundle(path, message)


def _copy_of(path: Path, load_bundle: Callable[[Path], DeviceModel], copies: BundleCopies | None) -> DeviceModel | None:
    """Returns the copy of a bundle that worked; None if there is no copy, or it is damaged too."""
    copy = copies.of(path) if copies is not None else None
    if copy is None:
        return None
    try:
        return load_bundle(copy)
    except UpdateError as error:
        log.error("bundle copy unusable", path=str(copy), error=error.message)
        return None


def _without_bundle(path: Path, why: str) -> RefusedBundle:
    """Returns and logs the problem of a setting without a bundle: its requests would go to the cloud unnoticed."""
    log.warning("no model in a folder of models.directories", path=str(path), error=why)
    return RefusedBundle(path, why)


def missing_bundle(directory: Path) -> str:
    """Returns why a folder of `models.directories` leads to no bundle, and what to do; "" if it leads to one."""
    try:
        if find_bundles(directory):
            return ""
        fault = "It holds no bundle, which is a folder with manifest.json"
    except (FileNotFoundError, NotADirectoryError):
        fault = "There is no such folder"
    except OSError as error:
        return f"It {unreadable(error)}"
    return f"{fault}; correct models.directories, or copy a bundle there."


def bundle_paths(directories: Iterable[Path]) -> list[Path]:
    """Returns the bundles that `directories` are or contain, in a stable order; none of a folder without access.

    A bundle with several paths, such as that of a link to it, is returned with the first one.
    """
    found: dict[Path, Path] = {}
    for directory in directories:
        with suppress(OSError):
            for path in find_bundles(directory):
                found.setdefault(path.resolve(), path)
    return list(found.values())


class NamedBundle(NamedTuple):
    """A folder's bundle by the name in its manifest, which nothing has verified; the newest of a name is the max."""

    name: str
    version: int
    path: Path


def named_bundles(paths: Iterable[Path]) -> list[NamedBundle]:
    """Returns the bundles whose manifests can be read."""
    return [NamedBundle(*key, path) for path in paths if (key := key_at(path)) is not None]


def load_bundle(
    path: Path,
    options: RuntimeOptions,
    workers: Workers,
    load_ladder: LadderLoader | None = None,
    profiles: Profiles | None = None,
    *,
    as_planned: bool = False,
) -> DeviceModel:
    """Opens one bundle and loads the variants that run here.

    Args:
        path: of the bundle.
        options: for the runtimes.
        workers: threads for longer runs.
        load_ladder: loads further variants; None to use only the first that loads.
        profiles: earlier measurements; models without one are measured now.
        as_planned: run each variant with the options that are the fastest by its profile.

    Raises:
        IntegrityError: the bundle is not what its manifest says.
    """
    bundle = open_bundle(path)
    profile = profiles.of(bundle) if profiles is not None else None
    options_for = (
        partial(fastest_options, profile, options) if as_planned and profile is not None else lambda _: options
    )
    try:
        edge = _measured(bundle, partial(load_edge, bundle, options, options_for), options_for, workers, profile)
    except FirstlineError as error:
        log.error("no edge variant runs here", model=bundle.manifest.name, error=error.message)
        return DeviceModel(bundle, None, error.message)
    if load_ladder is None or len(bundle.manifest.edge) == 1:
        return DeviceModel(bundle, edge)
    return load_ladder(
        bundle, edge, partial(load_variant, bundle, options_for=options_for, workers=workers, profile=profile), profile
    )


def load_variant(
    bundle: Bundle, model: Model, options_for: OptionsByModel, workers: Workers, profile: Profile | None = None
) -> EdgeModel:
    """Loads and measures one edge variant of a bundle.

    Raises:
        FirstlineError: it does not run here.
    """
    return _measured(bundle, partial(load_model, bundle, model, options_for(model)), options_for, workers, profile)


def _measured(
    bundle: Bundle,
    load: Callable[[], LoadedModel],
    options_for: OptionsByModel,
    workers: Workers,
    profile: Profile | None,
) -> EdgeModel:
    manifest, before_bytes = bundle.manifest, own_bytes()
    loaded = load()
    options = options_for(loaded.model)
    score = load_scorer(bundle, options)
    point = known_point(profile, loaded, options) if profile is not None else None
    if point is not None:
        row_ms, sample_bytes = point.query.quantiles_ms[0], point.moved.received_bytes
    else:

        def scored(inputs: Arrays) -> Scores:
            prediction = loaded.predict(inputs)
            return score(prediction.outputs, prediction.evidence)

        measured = quickest_ms(loaded, scored, _MEASURED_RUNS)
        row_ms, sample_bytes = measured or (math.inf, 1)
    edge = EdgeModel(
        loaded=loaded,
        score=score,
        digest=_evidence_digest(manifest, loaded),
        row_ms=row_ms,
        sample_bytes=sample_bytes,
        workers=workers,
        memory_bytes=max(0, own_bytes() - before_bytes),
        certificate=valid_certificate(manifest, loaded.model),
        uncertified=certificate_problem(manifest, loaded.model),
        value=manifest.policy.value,
        bounded_score=manifest.policy.score.kind not in ("energy", "graph"),
        pace=RelativeRunTimes.of(point.query) if point is not None else RelativeRunTimes(),
        profiled=point,
    )
    log.info(
        "model loaded",
        model=manifest.name,
        version=manifest.version,
        variant=loaded.model.id,
        provider=loaded.runtime.provider,
        threads=options.threads,
        row_ms=round(row_ms, 3),
        profiled=point is not None,
        certified=edge.certificate is not None,
    )
    return edge


def _evidence_digest(manifest: Manifest, loaded: LoadedModel) -> str:
    """Returns the digest of all that determines the evidence: model, task, score and learned value."""
    fields = [loaded.digest, manifest.task.digest, manifest.policy.score, manifest.policy.value]
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


_WARM_UP_RUNS = 2  # the first runs allocate and compile


def quickest_ms(loaded: LoadedModel, run: Callable[[Arrays], object], runs: int) -> tuple[float, int] | None:
    """Returns the milliseconds of one row, and that row's bytes; None if no row is typical.

    The shortest run counts, as with `timeit`: longer runs were delayed by other work of the machine.

    Args:
        loaded: the model, for whose inputs a row is made up.
        run: the call to measure.
        runs: number of measured calls.
    """
    inputs = loaded.made_up_inputs(typical=True)
    if inputs is None:
        return None
    spent_ms: list[float] = []
    for _ in range(_WARM_UP_RUNS + runs):
        started_s = time.perf_counter()
        run(inputs)
        spent_ms.append((time.perf_counter() - started_s) * 1000)
    return min(spent_ms[_WARM_UP_RUNS:]), payload_bytes(inputs.values())


_STATM = Path("/proc/self/statm")


def own_bytes() -> int:
    """Returns the resident memory without file pages; 0 if the system does not report it (proc_pid_statm(5))."""
    with suppress(OSError, ValueError, IndexError):
        _, resident, shared = (int(pages) for pages in _STATM.read_text().split()[:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0
