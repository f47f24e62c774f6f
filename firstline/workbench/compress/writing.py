"""The bundle's next version: what it was, and the accepted candidates with certificate and provenance."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from firstline.workbench.compress.compression import Compression
from firstline.workbench.compress.judge import Figures
from firstline.workbench.golden import answered_golden
from firstline.workbench.placing import in_place, refuse_existing
from firstline_core.bundle.golden import read_golden
from firstline_core.bundle.manifest import MANIFEST_NAME, Model, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.runtime.select import RuntimeOptions


def write_compressed(
    bundle: Bundle,
    found: Compression,
    made: Path,
    out: Path,
    *,
    take: Iterable[str],
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
) -> Bundle:
    """Writes it, whole or not at all. Golden answers are given anew, for the new variants answer too.

    Args:
        bundle: that was compressed.
        found: about it.
        made: the folder that `compress` filled.
        out: must not exist.
        take: ids of the candidates that go in.
        options: for the golden answers.

    Raises:
        ConfigError: `out` may not, or cannot, be written.
    """
    refuse_existing(out)
    wanted = set(take)
    new = [
        msgspec.structs.replace(
            one.model,
            certificate=found.certifications[one.model.id].certificate,
            measured={"accuracy": round(found.certified_accuracy[one.model.id], 4)},  # of rows that did not judge
        )
        for one in found.candidates
        if one.model is not None and one.figures is not None and one.model.id in wanted
    ]
    figures = {one.id: one for one in found.there}
    figures |= {one.figures.id: one.figures for one in found.candidates if one.figures is not None}
    old = bundle.manifest
    manifest = msgspec.structs.replace(old, version=old.version + 1, edge=in_order(old.edge, new, figures))
    with in_place(out) as staged:
        for artefact in manifest.artefacts:
            (staged / artefact.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made / artefact.file, staged / artefact.file)
        (staged / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
        if manifest.golden is not None:
            golden = answered_golden(
                Bundle(staged, manifest),
                read_golden(bundle, manifest.golden.artefact),
                options,
                manifest.golden.tolerance,
            )
            (staged / MANIFEST_NAME).write_bytes(encode_manifest(msgspec.structs.replace(manifest, golden=golden)))
        open_bundle(staged)
    return open_bundle(out)


def in_order(there: Sequence[Model], new: Sequence[Model], figures: dict[str, Figures]) -> tuple[Model, ...]:
    """Where new variants stand among the edge variants, of which a device takes the first that it can load.

    Before the first that keeps fewer answers under the same promise, or as many and takes longer: what stays on the
    device is what a variant is for. One without a certificate stands behind all that carry one, whatever this data
    proves of those. Those that were there stay in their order.
    """
    placed = list(there)
    for model in new:
        mine = _rank(model, figures)
        position = next((at for at, one in enumerate(placed) if _rank(one, figures) > mine), len(placed))
        if model.certificate is None:
            behind = max((at + 1 for at, one in enumerate(placed) if one.certificate is not None), default=0)
            position = max(position, behind)
        placed.insert(position, model)
    return tuple(placed)


def _rank(model: Model, figures: dict[str, Figures]) -> tuple[float, float]:
    return -(figures[model.id].kept or 0.0), figures[model.id].latency_ms
