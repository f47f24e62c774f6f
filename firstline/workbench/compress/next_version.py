"""Writes the bundle's next version, with the accepted candidates, their certificates and provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import inf
from pathlib import Path

import msgspec

from firstline.workbench.bundle import refuse_existing, write_version
from firstline.workbench.compress.compression import Compression
from firstline.workbench.compress.judge import Figures
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.hardware.readings import Measured, Modelled
from firstline_core.runtime.select import RuntimeOptions


class Preference(StrEnum):
    """The figure that decides the order of the variants."""

    KEPT = "kept"
    LATENCY = "latency"
    SIZE = "size"
    ENERGY = "energy"


def next_version(manifest: Manifest, found: Compression, take: Iterable[str], prefer: Preference) -> Manifest:
    """Returns the manifest of the next version, still with the old golden answers.

    Args:
        manifest: of the bundle that was compressed.
        found: the result of the compression.
        take: ids of the candidates to add.
        prefer: decides the order, see `ordered_variants`.
    """
    wanted = set(take)
    new = [
        msgspec.structs.replace(
            one.model,
            certificate=found.certifications[one.model.id].certificate,
            measured={"accuracy": round(found.certified_accuracy[one.model.id], 4)},  # on rows that chose nothing
        )
        for one in found.candidates
        if one.model is not None and one.figures is not None and one.model.id in wanted
    ]
    figures = {one.id: one for one in found.existing}
    figures |= {one.figures.id: one.figures for one in found.candidates if one.figures is not None}
    edge = ordered_variants(manifest.edge, new, figures, prefer)
    return msgspec.structs.replace(manifest, version=manifest.version + 1, edge=edge)


def write_compressed(
    bundle: Bundle,
    manifest: Manifest,
    made: Path,
    out: Path,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
) -> Bundle:
    """Writes the next version atomically, with new golden answers, which include the new variants'.

    Args:
        bundle: that was compressed.
        manifest: from `next_version`.
        made: the folder that `compress` filled.
        out: must not exist.
        options: for the golden answers.

    Raises:
        ConfigError: `out` exists or cannot be written.
    """
    refuse_existing(out)
    return write_version(Bundle(made, bundle.manifest), manifest, out, answer_with=options)


def ordered_variants(
    there: Sequence[Model], new: Sequence[Model], figures: dict[str, Figures], prefer: Preference = Preference.KEPT
) -> tuple[Model, ...]:
    """Inserts new variants into the edge variants, of which a device takes the first that it can load.

    A new variant is inserted before the first one that it is preferred to: by "kept", one that keeps fewer answers
    under the same promise, or as many and is slower; by another figure, one that is worse in it, or equal and keeps
    less. A variant without a certificate is behind all that have one. Existing variants stay in their order.
    """
    placed, rank = list(there), _RANKS[prefer]
    for model in new:
        mine = rank(figures[model.id])
        position = next((at for at, one in enumerate(placed) if rank(figures[one.id]) > mine), len(placed))
        if model.certificate is None:
            behind = max((at + 1 for at, one in enumerate(placed) if one.certificate is not None), default=0)
            position = max(position, behind)
        placed.insert(position, model)
    return tuple(placed)


def _latency_ms(one: Figures) -> float:
    return inf if one.latency_ms is None else one.latency_ms


def _energy_mj(one: Figures) -> float:
    return one.energy_mj.value if isinstance(one.energy_mj, Measured | Modelled) else inf


_RANKS: dict[Preference, Callable[[Figures], tuple[float, float]]] = {
    Preference.KEPT: lambda one: (-(one.kept or 0.0), _latency_ms(one)),
    Preference.LATENCY: lambda one: (_latency_ms(one), -(one.kept or 0.0)),
    Preference.SIZE: lambda one: (one.size_bytes, -(one.kept or 0.0)),
    Preference.ENERGY: lambda one: (_energy_mj(one), -(one.kept or 0.0)),
}
"""Smallest first; unknown figures come last."""
