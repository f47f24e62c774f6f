"""Figures of a bundle on labelled images: edge only, full only and tiered. No printing.

The tiers' decision is the product's own: the bundle's score, its threshold, `routing/policy.py`. Links, caches and
queues are not part of it; `firstline demo` shows those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline.workbench.dataset import Dataset
from firstline.workbench.measure import ALL_VARIANTS, EdgeRun, Measured, ModelRun, Progress, measure
from firstline_core.bundle.manifest import Policy
from firstline_core.bundle.store import Bundle
from firstline_core.routing.confidence import auroc
from firstline_core.runtime.select import RuntimeOptions

__all__ = ["ALL_VARIANTS", "Evaluation", "Latency", "ModelFigures", "Progress", "TieredFigures", "Variant", "evaluate"]


class Latency(Struct, frozen=True):
    """Milliseconds for one image, decoding and processing included, network excluded."""

    p50: float
    p99: float


class ModelFigures(Struct, frozen=True):
    """One model on its own. `accuracy` in 0..1."""

    id: str
    provider: str
    size_bytes: int
    accuracy: float
    latency_ms: Latency


class TieredFigures(Struct, frozen=True):
    """One edge variant with the full model behind it, routed by the bundle's policy.

    Attributes:
        edge_share: answered at the edge, in 0..1.
        disagreement: of the answers kept at the edge, the share for which the full model says another label; None
            where none was kept.
        auroc: how well the score tells the answers that disagree from the others, kept or not: the chance that one of
            them scores below one of the others. None where none disagrees, or all do.
        bytes_sent: of the encoded images that travel.
        bytes_all: if every image travelled.
        latency_ms: of both models where both ran; the network's share comes on top.
    """

    accuracy: float
    edge_share: float
    kept: int
    escalated: int
    disagreement: float | None
    auroc: float | None
    bytes_sent: int
    bytes_all: int
    latency_ms: Latency


class Variant(Struct, frozen=True):
    """An edge variant.

    Attributes:
        threshold: its answers are kept from this score on.
        by: "class" where each predicted class has a threshold of its own, `threshold` being the lowest; else "".
        tiered: None where the bundle has no full model.
    """

    edge: ModelFigures
    threshold: float
    by: str
    tiered: TieredFigures | None


class Evaluation(Struct, frozen=True):
    """Figures of one bundle on one data set. All of them were measured in this run."""

    bundle: str
    version: int
    data: str
    samples: int
    policy: Policy
    full: ModelFigures | None
    variants: tuple[Variant, ...]


def evaluate(
    bundle: Bundle,
    dataset: Dataset,
    *,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Runs the models over the data set and counts; arguments and errors are those of `measure`."""
    return figures(measure(bundle, dataset, variants=variants, options=options, progress=progress))


def figures(measured: Measured) -> Evaluation:
    """Counts what the models said."""
    full, truth, sizes = measured.full, measured.truth, measured.sizes
    return Evaluation(
        bundle=measured.manifest.name,
        version=measured.manifest.version,
        data=measured.data,
        samples=len(truth),
        policy=measured.manifest.policy,
        full=_model_figures(full, truth) if full is not None else None,
        variants=tuple(
            Variant(
                edge=_model_figures(edge, truth),
                threshold=edge.threshold,
                by=edge.by,
                tiered=_tiered(edge, full, truth, sizes) if full is not None else None,
            )
            for edge in measured.edges
        ),
    )


def _model_figures(run: ModelRun, truth: NDArray[np.int64]) -> ModelFigures:
    return ModelFigures(
        id=run.model.id,
        provider=run.provider,
        size_bytes=run.model.artefact.size_bytes,
        accuracy=float((run.labels == truth).mean()),
        latency_ms=_latency(run.seconds),
    )


def _tiered(edge: EdgeRun, full: ModelRun, truth: NDArray[np.int64], sizes: NDArray[np.int64]) -> TieredFigures:
    kept = edge.kept
    answers = np.where(kept, edge.labels, full.labels)
    differs = edge.labels != full.labels
    return TieredFigures(
        accuracy=float((answers == truth).mean()),
        edge_share=float(kept.mean()),
        kept=int(kept.sum()),
        escalated=int((~kept).sum()),
        disagreement=float(differs[kept].mean()) if kept.any() else None,
        auroc=auroc(edge.scores, differs),
        bytes_sent=int(sizes[~kept].sum()),
        bytes_all=int(sizes.sum()),
        latency_ms=_latency(edge.seconds + np.where(kept, 0.0, full.seconds)),
    )


def _latency(seconds: NDArray[np.float64]) -> Latency:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return Latency(round(float(p50), 4), round(float(p99), 4))
