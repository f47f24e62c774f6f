"""The numbers behind the plots and the page of `firstline evaluate --plots`: pure functions of a measurement."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from firstline.workbench.evaluate import EdgeRun, Evaluation, Measured, Variant
from firstline.workbench.infer import upright_image
from firstline.workbench.observe import Answers
from firstline.workbench.selection import is_graded, is_lost
from firstline_core.bundle.manifest import certificate_problem, valid_certificate
from firstline_core.processing.steps import Decode
from firstline_core.routing import binomial
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.policy import auroc
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification, temper

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RELIABILITY_BINS = 15
"""Of equal width, as in the literature, so that errors of calibration compare."""
HISTOGRAM_BINS = 30
PICTURES = 6
_SIDE = 480  # of a picture, in pixels


Quality = Mapping[str, tuple[float, float, float]]
"""Figures of a task by name: of the edge model, of both tiers, of the full model; NaN if there is none."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of counted rows with its 95 % Clopper-Pearson interval.

    Attributes:
        hits: number of rows, or the sum of their losses.
        value: hits / rows.
        low, high: ends of the interval; 0 and 1 without rows.
    """

    hits: float
    rows: int
    value: float
    low: float
    high: float


def share(hits: float, rows: int, level: float = 0.05) -> Share:
    """Returns the share with its two-sided Clopper-Pearson interval of confidence 1 - `level`.

    A sum of losses between 0 and 1 varies less than a count; its interval is that of the next whole numbers.
    """
    if not rows:
        return Share(0, 0, float("nan"), 0.0, 1.0)
    hits = int(hits) if float(hits).is_integer() else hits
    low = 1 - binomial.upper_bound(rows - math.floor(hits), rows, level / 2)
    return Share(hits, rows, hits / rows, low, binomial.upper_bound(math.ceil(hits), rows, level / 2))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The results of all thresholds, from escalating everything to accepting everything: (m,) each.

    Attributes:
        thresholds: decreasing, from infinity.
        escalated: share of all rows, decreasing.
        accuracy: share of right answers of all together, or 1 - their mean loss; None without labels.
        disagreement: mean loss of the accepted edge answers against the full model's; NaN if none is accepted.
    """

    thresholds: Floats
    escalated: Floats
    accuracy: Floats | None
    disagreement: Floats

    def at(self, escalated: float) -> int:
        """Returns the position of the threshold that escalates this share of the rows, or the next smaller share."""
        position = int(np.searchsorted(-self.escalated, -escalated - 1e-12))
        return min(position, len(self.escalated) - 1)


def curve(scores: Floats, losses: Floats, right: tuple[Floats, Floats] | None) -> Curve:
    """Returns the results of all thresholds; rows of equal score are accepted together.

    Args:
        scores: (n,), a higher value means accept; NaN is never accepted.
        losses: (n,) of the edge model against the full model.
        right: (n,) 1 - the loss of the edge model's answers against the labels, and of the full model's; None without
            labels.
    """
    order = np.argsort(-scores, kind="stable")[: len(scores) - int(np.isnan(scores).sum())]  # NaN sorts last
    descending = scores[order]
    accepted = np.concatenate([[0], np.unique(np.searchsorted(-descending, -descending, side="right"))])

    def among_accepted(rows: Floats) -> Floats:
        counts: Floats = np.concatenate([[0.0], np.cumsum(rows[order])])[accepted]
        return counts

    shares: Floats | None = None
    if right is not None:
        edge, full = right
        shares = (among_accepted(edge) + full.sum() - among_accepted(full)) / len(scores)
    return Curve(
        thresholds=np.concatenate([[np.inf], descending[accepted[1:] - 1]]),
        escalated=1 - accepted / len(scores),
        accuracy=shares,
        disagreement=np.where(accepted > 0, among_accepted(losses) / np.maximum(accepted, 1), np.nan),
    )


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows whose probability is at least `low` and below `high`.

    Attributes:
        probability: their mean.
        right: share of right answers.
    """

    low: float
    high: float
    probability: float
    right: Share


@dataclass(frozen=True, slots=True)
class Reliability:
    """How well probabilities match the share of right answers.

    Attributes:
        bins: those with rows, ascending.
        error: the expected calibration error: the gap between accuracy and mean probability, averaged over the rows.
    """

    bins: tuple[Bin, ...]
    error: float


def reliability(probabilities: Floats, right: Bools, count: int = RELIABILITY_BINS) -> Reliability:
    """Compares the model's probabilities with the share of correct answers.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", with bins of equal width.

    Args:
        probabilities: (n,) in [0, 1], of the likeliest class.
        right: (n,).
        count: of bins.
    """
    place = np.clip((probabilities * count).astype(np.intp), 0, count - 1)
    bins = tuple(
        Bin(
            low=at / count,
            high=(at + 1) / count,
            probability=float(probabilities[place == at].mean()),
            right=share(int(right[place == at].sum()), int((place == at).sum())),
        )
        for at in np.unique(place).tolist()
    )
    gaps = (each.right.rows * abs(each.right.value - each.probability) for each in bins)
    return Reliability(bins, sum(gaps) / len(right))


@dataclass(frozen=True, slots=True, eq=False)
class Histograms:
    """Frequencies of the scores.

    Attributes:
        edges: (bins + 1,) of all bins.
        agreeing: (bins,) rows in which both models agree; of graded losses, those up to the mean, see `is_lost`.
        disagreeing: (bins,) the other rows.
    """

    edges: Floats
    agreeing: NDArray[np.int64]
    disagreeing: NDArray[np.int64]


def histograms(scores: Floats, agrees: Bools, count: int = HISTOGRAM_BINS) -> Histograms:
    """Counts scores in bins of equal width from the lowest to the highest; scores that are not finite are left out."""
    finite = np.isfinite(scores)
    low, high = (scores[finite].min(), scores[finite].max()) if finite.any() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, count + 1)
    agreeing, disagreeing = (np.histogram(scores[finite & rows], edges)[0] for rows in (agrees, ~agrees))
    return Histograms(edges, agreeing, disagreeing)


@dataclass(frozen=True, slots=True, eq=False)
class Tiers:
    """An edge variant with the full model behind it.

    Attributes:
        full: share of right answers of the full model alone, or 1 - their mean loss; None without labels.
        accuracy: of all answers as the bundle's policy routes them; None without labels.
        escalated: by that policy, of all rows.
        disagreement: mean loss of the answers that it accepts against the full model's.
        auroc: of the score, for "edge disagrees with full", see `is_lost`; None if no row disagrees, or all do.
        curve: the results of other thresholds.
        scores: of agreeing and disagreeing answers.
    """

    full: Share | None
    accuracy: Share | None
    escalated: Share
    disagreement: Share
    auroc: float | None
    curve: Curve
    scores: Histograms


@dataclass(frozen=True, slots=True)
class Picture:
    """One row, answered by both models.

    Attributes:
        name: of the row.
        edge, full: JPEG images with the answers.
    """

    name: str
    edge: bytes
    full: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReportData:
    """One edge variant.

    Attributes:
        score: name of the score, for axes.
        threshold: from which answers are accepted, the lowest of any class.
        quality: the task's own figures, empty without labels.
        edge: share of right answers of the edge model alone; None without labels. An answer is right if it has no loss
            against its label, see `Task.truth_loss`; of graded losses, 1 - their mean.
        reliability: of a classifier's probabilities; None for other tasks and without labels.
        pictures: of accepted answers that disagree most with the full model's.
        certificate: of the variant; None without a valid one.
        uncertified: reason for a missing certificate, as part of a sentence, or "".
        tiers: None if the bundle has no full model.
        graded: whether losses lie between 0 and 1, so that figures are means, and no shares of answers.
    """

    variant: str
    score: str
    threshold: float
    classes: int
    rows: int
    quality: Quality
    edge: Share | None
    reliability: Reliability | None
    pictures: tuple[Picture, ...]
    certificate: Certificate | None
    uncertified: str
    tiers: Tiers | None
    graded: bool


def report_data(measured: Measured, edge: EdgeRun, quality: Quality = MappingProxyType({})) -> ReportData:
    """Returns the numbers of one variant.

    Args:
        measured: the measurement.
        edge: one of its variants.
        quality: see `quality_of`.
    """
    manifest, answers = measured.manifest, edge.answers
    task, rule, truth = manifest.task, manifest.policy.score, measured.truth
    right = None if truth is None else 1 - task.truth_loss(answers.outputs, truth).astype(np.float64)
    losses = np.zeros(0) if measured.full is None else task.loss(answers.outputs, measured.full.outputs)
    return ReportData(
        variant=answers.model.id,
        score=rule.kind.replace("_", " ") + (f", temperature {rule.temperature:g}" if rule.temperature != 1 else ""),
        threshold=edge.threshold,
        classes=len(manifest.labels),
        rows=len(measured.sizes),
        quality=quality,
        edge=None if right is None else share(float(right.sum()), len(right)),
        reliability=_reliability(task, answers, rule.temperature, right),
        pictures=_pictures(measured, edge),
        certificate=valid_certificate(manifest, answers.model),
        uncertified=certificate_problem(manifest, answers.model),
        tiers=_tiers(measured, edge, measured.full, right) if measured.full is not None else None,
        graded=is_graded(losses) or (right is not None and is_graded(right)),
    )


def _reliability(task: Task, answers: Answers, temperature: float, right: Floats | None) -> Reliability | None:
    if right is None or not isinstance(task, Classification):
        return None
    return reliability(temper(answers.probabilities, temperature).max(axis=1).astype(np.float64), right == 1)


def _tiers(measured: Measured, edge: EdgeRun, full: Answers, right: Floats | None) -> Tiers:
    task, truth, rows, accepted = measured.manifest.task, measured.truth, len(measured.sizes), edge.accepted
    losses = task.loss(edge.answers.outputs, full.outputs).astype(np.float64)
    full_right = None if truth is None else 1 - task.truth_loss(full.outputs, truth).astype(np.float64)
    both = None if right is None or full_right is None else (right, full_right)
    lost = is_lost(losses)
    return Tiers(
        full=None if full_right is None else share(float(full_right.sum()), rows),
        accuracy=None if both is None else share(float(both[0][accepted].sum() + both[1][~accepted].sum()), rows),
        escalated=share(int((~accepted).sum()), rows),
        disagreement=share(float(losses[accepted].sum()), int(accepted.sum())),
        auroc=auroc(edge.scores, lost),
        curve=curve(edge.scores, losses, both),
        scores=histograms(edge.scores, ~lost),
    )


def quality_of(variant: Variant, evaluation: Evaluation) -> Quality:
    """Returns the figures of one variant."""
    tiered = variant.tiered.quality if variant.tiered is not None else {}
    full = evaluation.full.quality if evaluation.full is not None else {}
    return {
        name: (value, tiered.get(name, math.nan), full.get(name, math.nan))
        for name, value in variant.edge.quality.items()
    }


def _pictures(measured: Measured, edge: EdgeRun) -> tuple[Picture, ...]:
    accepted = takewhile(lambda drawn: drawn.accepted, disagreements(measured, edge, PICTURES))
    return tuple(Picture(drawn.name, _jpeg(drawn.edge), _jpeg(drawn.full)) for drawn in accepted)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row in which the models differ.

    Attributes:
        name: of the row.
        accepted: whether the edge answer is.
        edge, full: the image with the answers.
    """

    name: str
    accepted: bool
    edge: Image.Image
    full: Image.Image


def disagreements(measured: Measured, edge: EdgeRun, most: int) -> Iterator[Disagreement]:
    """Yields the rows in which the models differ, if the data are images.

    The accepted rows come first, and of these and of the others those with the largest losses.

    Args:
        measured: the measurement.
        edge: one of its variants.
        most: number of rows.
    """
    task, dataset, full = measured.manifest.task, measured.dataset, measured.full
    takes_images = any(isinstance(step, Decode) for step in edge.answers.model.presteps)
    if full is None or dataset.media is None or not takes_images:
        return
    losses = task.loss(edge.answers.outputs, full.outputs)
    ordered = np.lexsort((-losses, ~edge.accepted))
    rows = ordered[losses[ordered] > 0][:most].tolist()
    some = replace(dataset, samples=tuple(dataset.samples[row] for row in rows))
    for row, sample, content in zip(rows, some.samples, some.contents(), strict=True):
        image = upright_image(content, dataset.place_of(sample))
        drawn = (ImageOps.contain(task.draw(image, run.outputs, row), (_SIDE, _SIDE)) for run in (edge.answers, full))
        yield Disagreement(sample.file, bool(edge.accepted[row]), *drawn)


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
