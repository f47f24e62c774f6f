"""Measures a bundle on data: edge only, full only and tiered. No printing.

The tiers' decision is the product's own: the bundle's score, its threshold, `routing/policy.py`. Links, caches and
queues are not part of it; `firstline demo` shows those.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline.workbench.auroc import auroc
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Answers, Progress, observe
from firstline.workbench.selection import EdgeRows, is_lost
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import Scorer, load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import Manifest, Model, Policy, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InvalidTensorError, listed
from firstline_core.routing import policy
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import Task
from firstline_core.types import Array, Arrays

ALL_VARIANTS = "all"


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRun:
    """An edge variant's answers, as the bundle's policy judges them.

    Attributes:
        answers: of the variant.
        scores: (n,) by the bundle's score function.
        threshold: from which its answers are accepted.
        by: "class" where thresholds are by predicted class, `threshold` being the lowest; else "".
        accepted: (n,) whether the bundle's policy accepts the answer.
    """

    answers: Answers
    scores: NDArray[np.float64]
    threshold: float
    by: str
    accepted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A bundle on a data set.

    Attributes:
        dataset: the data, whose rows are in the order of all arrays.
        truth: labels, see `Task.truth`; None if the data has none.
        sizes: (n,) bytes of the inputs.
        full: None if the bundle has no full model.
    """

    manifest: Manifest
    dataset: Dataset
    truth: Arrays | None
    sizes: NDArray[np.int64]
    edges: tuple[EdgeRun, ...]
    full: Answers | None


def measure(
    bundle: Bundle,
    dataset: Dataset,
    *,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
    all_evidence: bool = False,
) -> Measured:
    """Runs the models, row by row.

    Args:
        bundle: the bundle to measure.
        dataset: rows that no model was trained on; without labels, no quality is measured.
        variants: ids of edge variants, or "all"; empty for the first one that loads, as on a device.
        options: how the models run.
        progress: receives the number of processed samples and their total.
        all_evidence: stores all evidence of the edge models, which other scores than the bundle's may read.

    Raises:
        ConfigError: a variant is unknown or does not give what the score needs, or the data does not fit the bundle.
        ModelLoadError: a model does not load here.
    """
    manifest = bundle.manifest
    truth = dataset.truth(manifest.task, manifest.inputs)
    score = load_scorer(bundle, options)
    with ExitStack() as stack:
        edges = _load_edges(bundle, variants, options)
        full = load_model(bundle, manifest.full, options) if manifest.full is not None else None
        models = [*edges, full] if full is not None else edges
        for model in models:
            stack.callback(model.close)

        # Scores of probabilities alone read no evidence, which may take as much memory as the outputs.
        reads_evidence = all_evidence or not manifest.task.graph_scores or manifest.policy.score.kind == "energy"
        stored = models if manifest.task.compares_evidence else edges if reads_evidence else ()
        observed = observe(models, manifest.inputs, dataset, progress, with_evidence=stored)
    runs = [_edge_run(manifest, one, _scores(manifest, one, score)) for one in observed.answers[: len(edges)]]
    return Measured(
        manifest=manifest,
        dataset=dataset,
        truth=truth,
        sizes=observed.sizes,
        edges=tuple(runs),
        full=observed.answers[-1] if full is not None else None,
    )


def _scores(manifest: Manifest, answers: Answers, score: Scorer) -> NDArray[np.float64]:
    """Returns the scores by the bundle's score.

    Raises:
        ConfigError: the model does not give what the score needs; names the scores that remain.
    """
    try:
        return answers.scores(score)
    except InvalidTensorError as error:
        edge = EdgeRows(manifest.task, answers.outputs, answers.evidence)
        raise ConfigError(
            f"The bundle's score '{manifest.policy.score.kind}' does not go with '{answers.model.id}': {error.message} "
            f"Scores that remain: {', '.join(edge.fixed_scores()) or 'none'}."
        ) from error


def _edge_run(manifest: Manifest, answers: Answers, scores: NDArray[np.float64]) -> EdgeRun:
    certificate = valid_certificate(manifest, answers.model)
    declared = manifest.policy.threshold
    thresholds = [
        policy.threshold_in_use(declared, certificate, label=group) for group in manifest.task.groups(answers.outputs)
    ]
    return EdgeRun(
        answers=answers,
        scores=scores,
        threshold=policy.threshold_in_use(declared, certificate),
        by=certificate.by if certificate is not None else "",
        accepted=scores >= np.array(thresholds),
    )


def _load_edges(bundle: Bundle, variants: Sequence[str], options: RuntimeOptions) -> list[LoadedModel]:
    by_id: dict[str, Model] = {model.id: model for model in bundle.manifest.edge}
    if not variants:
        return [load_edge(bundle, options)] if by_id else []
    names = list(by_id) if ALL_VARIANTS in variants else list(variants)
    unknown = [name for name in names if name not in by_id]
    if unknown:
        raise ConfigError(
            f"Bundle '{bundle.manifest.name}' has no edge variant '{unknown[0]}'{listed(unknown[0], by_id, 'it has:')}"
        )
    return [load_model(bundle, by_id[name], options) for name in names]


class Latency(Struct, frozen=True):
    """Milliseconds for one row, decoding and processing included, network excluded."""

    p50: float
    p99: float


class ModelFigures(Struct, frozen=True):
    """One model on its own.

    Attributes:
        quality: the figures of `Task.summary`, such as accuracy or map50; empty without labels.
    """

    id: str
    provider: str
    size_bytes: int
    quality: dict[str, float]
    latency_ms: Latency


class EventFigures(Struct, frozen=True):
    """An event among the answers accepted at the edge, see `Task.event`.

    Attributes:
        rows: accepted rows in which the event could occur, such as those in which the full model sees a person.
        occurred: those of them in which it did, such as those in which the edge model sees none.
    """

    rows: int
    occurred: int


class TieredFigures(Struct, frozen=True):
    """One edge variant with the full model behind it, routed by the bundle's policy.

    Attributes:
        quality: of all answers together; empty without labels.
        edge_share: answered at the edge, in 0..1.
        disagreement: mean `Task.loss` of the answers accepted at the edge against the full model's; of a classifier the
            share with another label. None where none was accepted.
        auroc: how well the score tells the answers that disagree from the others, accepted or not: the chance that one
            of them scores below one of the others. Of graded losses, those above the mean disagree. None where none
            disagrees, or all do.
        bytes_sent: of the inputs that travel.
        bytes_all: if every row travelled.
        events: by name, of the task's events that could occur in an accepted row.
        latency_ms: of both models where both ran; the network's share comes on top.
    """

    quality: dict[str, float]
    edge_share: float
    kept: int
    escalated: int
    disagreement: float | None
    auroc: float | None
    bytes_sent: int
    bytes_all: int
    events: dict[str, EventFigures]
    latency_ms: Latency


class Variant(Struct, frozen=True):
    """An edge variant.

    Attributes:
        threshold: its answers are accepted from this score on.
        by: "class" where each predicted class has a threshold of its own, `threshold` being the lowest; else "".
        tiered: None where the bundle has no full model.
    """

    edge: ModelFigures
    threshold: float
    by: str
    tiered: TieredFigures | None


class Evaluation(Struct, frozen=True):
    """Figures of one bundle on one data set. All of them were measured in this run.

    Attributes:
        task: kind of the bundle's task.
        quality: name of the figure by which models of this task are compared.
    """

    bundle: str
    version: int
    data: str
    samples: int
    task: str
    quality: str
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
    """Returns the figures of a measurement.

    Raises:
        ConfigError: no row has a label, or a package that computes a figure is not installed.
    """
    manifest, full = measured.manifest, measured.full
    return Evaluation(
        bundle=manifest.name,
        version=manifest.version,
        data=measured.dataset.path.name,
        samples=len(measured.sizes),
        task=manifest.task.kind,
        quality=manifest.task.quality,
        policy=manifest.policy,
        full=_model_figures(measured, full) if full is not None else None,
        variants=tuple(
            Variant(
                edge=_model_figures(measured, edge.answers),
                threshold=edge.threshold,
                by=edge.by,
                tiered=_tiered(measured, edge, full) if full is not None else None,
            )
            for edge in measured.edges
        ),
    )


def _model_figures(measured: Measured, run: Answers) -> ModelFigures:
    return ModelFigures(
        id=run.model.id,
        provider=run.provider,
        size_bytes=run.model.artefact.size_bytes,
        quality=_quality(measured, run.outputs, run.evidence),
        latency_ms=_latency(run.seconds),
    )


def _quality(measured: Measured, outputs: Arrays, evidence: Arrays) -> dict[str, float]:
    if measured.truth is None:
        return {}
    return measured.manifest.task.summary(outputs, evidence, measured.truth)


def _tiered(measured: Measured, edge: EdgeRun, full: Answers) -> TieredFigures:
    task, accepted, sizes = measured.manifest.task, edge.accepted, measured.sizes
    losses = task.loss(edge.answers.outputs, full.outputs)
    outputs, evidence = (
        routed(accepted, ours, theirs)
        for ours, theirs in ((edge.answers.outputs, full.outputs), (edge.answers.evidence, full.evidence))
    )
    return TieredFigures(
        quality=_quality(measured, outputs, evidence),
        edge_share=float(accepted.mean()),
        kept=int(accepted.sum()),
        escalated=int((~accepted).sum()),
        disagreement=float(losses[accepted].mean(dtype=np.float64)) if accepted.any() else None,
        auroc=auroc(edge.scores, is_lost(losses)),
        bytes_sent=int(sizes[~accepted].sum()),
        bytes_all=int(sizes.sum()),
        events=_events(task, edge, full),
        latency_ms=_latency(edge.answers.seconds + np.where(accepted, 0.0, full.seconds)),
    )


def routed(accepted: NDArray[np.bool_], edge: Arrays, full: Arrays) -> dict[str, Array]:
    """Returns the rows of the edge model where they are accepted, else those of the full model."""
    return {
        name: np.where(accepted.reshape(-1, *(1,) * (ours.ndim - 1)), ours, full[name])
        for name, ours in edge.items()
        if name in full and full[name].shape == ours.shape
    }


def _events(task: Task, edge: EdgeRun, full: Answers) -> dict[str, EventFigures]:
    """Returns the events that can occur in the accepted rows."""
    ours, theirs = ({name: array[edge.accepted] for name, array in run.outputs.items()} for run in (edge.answers, full))
    return {
        name: EventFigures(int(counts.sum()), int((losses[counts] > 0).sum()))
        for name, (counts, losses) in task.events_of(task.events, ours, theirs).items()
        if counts.any()
    }


def _latency(seconds: NDArray[np.float64]) -> Latency:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return Latency(round(float(p50), 4), round(float(p99), 4))
