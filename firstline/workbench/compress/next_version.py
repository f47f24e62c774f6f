"""The manifest of the bundle's next version, with the accepted candidates and their certificates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

import msgspec

from firstline.workbench.compress.compression import Compression
from firstline.workbench.compress.judge import Figures
from firstline_core.bundle.manifest import Manifest, Model


def next_version(manifest: Manifest, found: Compression, take: Collection[str]) -> Manifest:
    """Returns the manifest of the next version, still with the old golden answers.

    Args:
        manifest: of the bundle that was compressed.
        found: the result of the compression.
        take: ids of the candidates to add.
    """
    new = [
        msgspec.structs.replace(
            one.model,
            certificate=found.certifications[one.model.id].certificate,
            measured={"accuracy": round(found.certified_accuracy[one.model.id], 4)},  # on rows that chose nothing
        )
        for one in found.candidates
        if one.model is not None and one.figures is not None and one.model.id in take
    ]
    figures = {one.id: one for one in found.existing}
    figures |= {one.figures.id: one.figures for one in found.candidates if one.figures is not None}
    edge = ordered_variants(manifest.edge, new, figures)
    return msgspec.structs.replace(manifest, version=manifest.version + 1, edge=edge)


def ordered_variants(there: Sequence[Model], new: Sequence[Model], figures: Mapping[str, Figures]) -> tuple[Model, ...]:
    """Inserts new variants into the edge variants, of which a device takes the first that it can load.

    A new variant is inserted before the first one that keeps fewer answers under the same promise, or as many and is
    slower, or of unknown time. A variant without a certificate is behind all that have one. Existing variants stay in
    their order.
    """

    def rank(model: Model) -> tuple[float, float]:
        latency_ms = figures[model.id].latency_ms
        return -(figures[model.id].kept or 0.0), inf if latency_ms is None else latency_ms

    placed = list(there)
    for model in new:
        position = next((at for at, one in enumerate(placed) if rank(one) > rank(model)), len(placed))
        if model.certificate is None:
            behind = max((at + 1 for at, one in enumerate(placed) if one.certificate is not None), default=0)
            position = max(position, behind)
        placed.insert(position, model)
    return tuple(placed)
