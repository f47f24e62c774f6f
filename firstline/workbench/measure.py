"""Runs a bundle's models over labelled data and keeps each answer, row by row, for figures and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.dataset import Dataset
from firstline.workbench.observe import observe
from firstline_core.bundle.loading import LoadedModel, load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import Manifest, Model, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.routing import policy
from firstline_core.routing.confidence import temper
from firstline_core.runtime.select import RuntimeOptions

Progress = Callable[[int, int], None]
ALL_VARIANTS = "all"


@dataclass(frozen=True, slots=True, eq=False)
class ModelRun:
    """One model's answers over the data set.

    Attributes:
        labels: (n,) the likeliest class.
        seconds: (n,) for each image, decoding and processing included.
    """

    model: Model
    provider: str
    labels: NDArray[np.int64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRun(ModelRun):
    """Additional results of an edge variant.

    Attributes:
        scores: (n,) by the bundle's score function.
        probabilities: (n,) of the likeliest class, tempered as the score has them.
        threshold: from which its answers are kept.
        by: "class" where thresholds are by predicted class, `threshold` being the lowest; else "".
        kept: (n,) whether the bundle's policy keeps the answer.
    """

    scores: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    threshold: float
    by: str
    kept: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A bundle on a data set.

    Attributes:
        data: the data set's name.
        truth: (n,) labels.
        sizes: (n,) bytes of the encoded images.
        full: None where the bundle has no full model.
    """

    manifest: Manifest
    data: str
    truth: NDArray[np.int64]
    sizes: NDArray[np.int64]
    edges: tuple[EdgeRun, ...]
    full: ModelRun | None


def measure(
    bundle: Bundle,
    dataset: Dataset,
    *,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Measured:
    """Runs the models, image by image.

    Args:
        bundle: the bundle to measure.
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

        count = len(dataset)
        labels = np.empty((len(models), count), np.int64)
        seconds = np.empty((len(models), count), np.float64)
        scores, probabilities = np.empty((2, len(edges), count), np.float64)
        truth, sizes = np.empty((2, count), np.int64)
        for i, seen in enumerate(observe(models, manifest.input, dataset)):
            truth[i], sizes[i], seconds[:, i] = seen.label, seen.size_bytes, seen.seconds
            labels[:, i] = [int(rows.argmax()) for rows in seen.answers]
            for at, rows in enumerate(seen.answers[: len(edges)]):
                scores[at, i] = score(rows, seen.logits[at])[0]
                probabilities[at, i] = temper(rows, manifest.policy.score.temperature).max()
            progress(i + 1, count)

    runs = []
    for at, edge in enumerate(edges):
        certificate = valid_certificate(manifest, edge.model)
        found = [
            policy.threshold_in_use(manifest.policy.threshold, certificate, label=manifest.labels[label])
            for label in labels[at].tolist()
        ]
        runs.append(
            EdgeRun(
                model=edge.model,
                provider=edge.runtime.provider,
                labels=labels[at],
                seconds=seconds[at],
                scores=scores[at],
                probabilities=probabilities[at],
                threshold=policy.threshold_in_use(manifest.policy.threshold, certificate),
                by=certificate.by if certificate is not None else "",
                kept=scores[at] >= np.array(found),
            )
        )
    return Measured(
        manifest=manifest,
        data=dataset.folder.name,
        truth=truth,
        sizes=sizes,
        edges=tuple(runs),
        full=ModelRun(full.model, full.runtime.provider, labels[-1], seconds[-1]) if full is not None else None,
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
