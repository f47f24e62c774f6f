"""From folders to the models that this device holds: bundles opened, edge variants loaded and measured.

A bundle whose edge variant does not load is still held: its requests are `heavy`, and go to the cloud with its
version and the full model's digest. A bundle that cannot be trusted is not held at all. Both are told in `status`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from firstline_core.bundle.certificate import certificate_problem, valid_certificate
from firstline_core.bundle.loading import load_edge, load_scorer
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest
from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.bundle.scorer import row_scorer
from firstline_core.bundle.store import declared, open_bundle
from firstline_core.errors import FirstlineError, UpdateError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.telemetry.logs import logger
from firstline_edge.bundle_copies import BundleCopies
from firstline_edge.model_timing import quickest_ms
from firstline_edge.models import EdgeModel, HeldModel, Models, Problem
from firstline_edge.workers import Workers

log = logger(__name__)

_MEASURED_RUNS = 5


def open_models(
    directories: Sequence[Path],
    options: RuntimeOptions,
    workers: Workers,
    copies: BundleCopies | None = None,
    installed: Sequence[HeldModel] = (),
) -> Models:
    """Opens every bundle below `directories`, loads its edge variant and measures it. Never raises for a bad bundle.

    Args:
        directories: bundles, or folders of bundles.
        options: for the runtimes.
        workers: where longer runs go.
        copies: keeps one of each bundle that works, and has it for when its files are damaged.
        installed: held in place of bundles of the same name.
    """
    held: list[HeldModel] = list(installed)
    theirs = {model.manifest.name for model in installed}
    problems: list[Problem] = []
    paths = bundle_paths(directories)
    if copies is not None:
        there = {path.resolve() for path in paths}
        paths += [path for path in copies.sources(directories) if path not in there]
        copies.prune(paths)
    for path in paths:
        if theirs and (said := declared(path)) is not None and said[0] in theirs:
            continue
        try:
            held.append(hold(path, options, workers))
            if copies is not None and held[-1].edge is not None:
                copies.keep(held[-1].bundle)
        except UpdateError as error:
            log.error("cannot use a bundle", path=str(path), error=error.message)
            copy = _copy_of(path, options, workers, copies)
            held += [copy] if copy is not None else []
            instead = f" A copy of version {copy.version} answers instead." if copy is not None else ""
            problems.append(Problem(path, error.message + instead))
    problems += [_empty(path) for path in directories if not bundle_paths([path])]
    return Models(held, problems)


def _copy_of(path: Path, options: RuntimeOptions, workers: Workers, copies: BundleCopies | None) -> HeldModel | None:
    """The bundle as it was when it last worked; None where there is no such copy, or that is damaged too."""
    copy = copies.of(path) if copies is not None else None
    if copy is None:
        return None
    try:
        return hold(copy, options, workers)
    except UpdateError as error:
        log.error("cannot use the copy of a bundle", path=str(copy), error=error.message)
        return None


def _empty(path: Path) -> Problem:
    """A setting that leads to nothing, told in the log too: requests would go to the cloud without a word."""
    fault = "It holds no bundle, which is a folder with manifest.json" if path.is_dir() else "There is no such folder"
    message = f"{fault}; correct models.directories, or copy a bundle there."
    log.warning("no model in a folder of models.directories", path=str(path), error=message)
    return Problem(path, message)


def bundle_paths(directories: Iterable[Path]) -> list[Path]:
    """The bundles that `directories` are or contain, in a stable order."""
    found: list[Path] = []
    for directory in directories:
        if (directory / MANIFEST_NAME).exists():
            found.append(directory)
        elif directory.is_dir():
            found += sorted(path.parent for path in directory.glob(f"*/{MANIFEST_NAME}"))
    return found


def hold(path: Path, options: RuntimeOptions, workers: Workers) -> HeldModel:
    """Opens one bundle and loads what of it runs here.

    Raises:
        IntegrityError: the bundle is not what its manifest says.
    """
    bundle = open_bundle(path)
    try:
        loaded = load_edge(bundle, options)
        score = load_scorer(bundle, options)
        measured = quickest_ms(
            bundle.manifest, loaded, lambda tensor: score(*loaded.predict_with_logits(tensor)), _MEASURED_RUNS
        )
        row_ms, sample_bytes = measured or (math.inf, 1)
    except FirstlineError as error:
        log.error("no edge variant runs here", model=bundle.manifest.name, error=error.message)
        return HeldModel(bundle, None, error.message)
    edge = EdgeModel(
        loaded=loaded,
        score=score,
        digest=_evidence_digest(bundle.manifest, loaded),
        row_ms=row_ms,
        sample_bytes=sample_bytes,
        workers=workers,
        certificate=valid_certificate(bundle.manifest, loaded.model),
        uncertified=certificate_problem(bundle.manifest, loaded.model),
        value=bundle.manifest.policy.value,
        row_score=row_scorer(bundle.manifest.policy.score, len(bundle.manifest.labels)),
        bounded_score=bundle.manifest.policy.score.kind not in ("energy", "graph"),
    )
    log.info(
        "model loaded",
        model=bundle.manifest.name,
        version=bundle.manifest.version,
        variant=loaded.model.id,
        provider=loaded.runtime.provider,
        row_ms=round(row_ms, 3),
        certified=edge.certificate is not None,
    )
    return HeldModel(bundle, edge)


def _evidence_digest(manifest: Manifest, loaded: LoadedModel) -> str:
    """A change of score or value makes old ones worthless, just as a change of the model does."""
    policy = manifest.policy
    return hashlib.sha256(msgspec.json.encode([loaded.digest, policy.score, policy.value])).hexdigest()
