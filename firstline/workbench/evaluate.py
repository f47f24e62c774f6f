"""What a bundle gives on labelled images: edge only, full only and tiered. No printing.

The tiers' decision is the product's own: the bundle's score, its threshold, `routing/policy.py`. Links, caches and
queues are not part of it; `firstline demo` shows those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline.workbench.dataset import Dataset
from firstline.workbench.observe import observe
from firstline_core.bundle.certificate import valid_certificate
from firstline_core.bundle.manifest import Model, Policy
from firstline_core.bundle.pipeline import LoadedModel, load_edge, load_model, load_scorer
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.routing import policy
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Tier

Progress = Callable[[int, int], None]
ALL_VARIANTS = "all"


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
        bytes_sent: of the encoded images that travel.
        bytes_all: if every image travelled.
        latency_ms: of both models where both ran; the network's share comes on top.
    """

    accuracy: float
    edge_share: float
    kept: int
    escalated: int
    disagreement: float | None
    bytes_sent: int
    bytes_all: int
    latency_ms: Latency


class Variant(Struct, frozen=True):
    """An edge variant, its answers kept from `threshold` on; `tiered` is None where the bundle has no full model."""

    edge: ModelFigures
    threshold: float
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


class _Trace(Struct):
    """One model's answers over the data set: (n,) each."""

    labels: NDArray[np.int64]
    seconds: NDArray[np.float64]


def evaluate(
    bundle: Bundle,
    dataset: Dataset,
    *,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Runs the models over the data set.

    Args:
        bundle: what is evaluated.
        dataset: labelled images that no model was trained on.
        variants: ids of edge variants, or "all"; empty takes the one that a device would: the first that loads.
        options: how the models run.
        progress: told how many samples are done, of how many.

    Raises:
        ConfigError: an unknown variant, or data that does not fit the bundle.
        ModelLoadError: a model does not load here.
    """
    manifest = bundle.manifest
    dataset.check_labels(manifest.labels)
    score = load_scorer(bundle, options)
    with ExitStack() as stack:
        edges = _load_edges(bundle, variants, options)
        full = load_model(bundle, manifest.full, options) if manifest.full is not None else None
        models = [*edges, full] if full is not None else edges
        for model in models:
            stack.callback(model.close)

        thresholds = [
            policy.threshold_in_use(manifest.policy.threshold, valid_certificate(manifest, edge.model))
            for edge in edges
        ]
        count = len(dataset)
        answers = np.empty((len(models), count), np.int64)
        seconds = np.empty((len(models), count), np.float64)
        kept = np.zeros((len(edges), count), np.bool_)
        truth, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
        for i, seen in enumerate(observe(models, manifest.input, dataset)):
            truth[i], sizes[i], seconds[:, i] = seen.label, seen.size_bytes, seen.seconds
            answers[:, i] = [int(rows.argmax()) for rows in seen.answers]
            for variant in range(len(edges)):
                sure = float(score(seen.answers[variant])[0])
                kept[variant, i] = policy.after(sure, thresholds[variant]).tier is Tier.EDGE
            progress(i + 1, count)

    traces = [_Trace(answers[m], seconds[m]) for m in range(len(models))]
    far = traces[-1] if full is not None else None
    return Evaluation(
        bundle=manifest.name,
        version=manifest.version,
        data=dataset.folder.name,
        samples=count,
        policy=manifest.policy,
        full=_model_figures(full, traces[-1], truth) if full is not None else None,
        variants=tuple(
            Variant(
                edge=_model_figures(edge, traces[position], truth),
                threshold=thresholds[position],
                tiered=_tiered(traces[position], far, kept[position], truth, sizes) if far is not None else None,
            )
            for position, edge in enumerate(edges)
        ),
    )


def _load_edges(bundle: Bundle, variants: Sequence[str], options: RuntimeOptions) -> list[LoadedModel]:
    known: dict[str, Model] = {model.id: model for model in bundle.manifest.edge}
    if not variants:
        return [load_edge(bundle, options)] if known else []
    names = list(known) if ALL_VARIANTS in variants else list(variants)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"Bundle '{bundle.manifest.name}' has no edge variant '{unknown[0]}'; it has: {', '.join(known) or 'none'}."
        )
    return [load_model(bundle, known[name], options) for name in names]


def _model_figures(model: LoadedModel, trace: _Trace, truth: NDArray[np.int64]) -> ModelFigures:
    return ModelFigures(
        id=model.model.id,
        provider=model.runtime.provider,
        size_bytes=model.model.artefact.size_bytes,
        accuracy=float((trace.labels == truth).mean()),
        latency_ms=_latency(trace.seconds),
    )


def _tiered(
    edge: _Trace, full: _Trace, kept: NDArray[np.bool_], truth: NDArray[np.int64], sizes: NDArray[np.int64]
) -> TieredFigures:
    answers = np.where(kept, edge.labels, full.labels)
    differs = edge.labels != full.labels
    return TieredFigures(
        accuracy=float((answers == truth).mean()),
        edge_share=float(kept.mean()),
        kept=int(kept.sum()),
        escalated=int((~kept).sum()),
        disagreement=float(differs[kept].mean()) if kept.any() else None,
        bytes_sent=int(sizes[~kept].sum()),
        bytes_all=int(sizes.sum()),
        latency_ms=_latency(edge.seconds + np.where(kept, 0.0, full.seconds)),
    )


def _latency(seconds: NDArray[np.float64]) -> Latency:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return Latency(round(float(p50), 4), round(float(p99), 4))
