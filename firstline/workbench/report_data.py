"""The numbers behind the page of `firstline evaluate --plots`: pure functions of a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstline.workbench.auroc import auroc
from firstline.workbench.evaluate import EdgeRun, Evaluation, Measured, Variant
from firstline.workbench.selection import is_graded, is_lost
from firstline_core.bundle.manifest import certificate_problem, valid_certificate
from firstline_core.processing.images import decode
from firstline_core.processing.steps import Decode
from firstline_core.routing.bounds import clopper_pearson
from firstline_core.routing.certificate import Certificate
from firstline_core.tasks.classification import Classification, temper
from firstline_core.tasks.drawing import size_within

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RELIABILITY_BINS = 15
"""Of equal width, as in the literature, so that errors of calibration compare."""
_PICTURE = (480, 480)  # largest width and height, in pixels

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


def share(hits: float, rows: int) -> Share:
    """Returns the share with its two-sided 95 % Clopper-Pearson interval.

    A sum of losses between 0 and 1 varies less than a count; its interval is that of the next whole numbers.
    """
    if not rows:
        return Share(0, 0, float("nan"), 0.0, 1.0)
    hits = int(hits) if float(hits).is_integer() else hits
    low = 1 - clopper_pearson(rows - math.floor(hits), rows, 0.025)
    return Share(hits, rows, hits / rows, low, clopper_pearson(math.ceil(hits), rows, 0.025))


class Curve(NamedTuple):
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


def curve(scores: Floats, losses: Floats, right: tuple[Floats, Floats] | None, labelled: int) -> Curve:
    """Returns the results of all thresholds; rows of equal score are accepted together.

    Args:
        scores: (n,), a higher value means accept; NaN is never accepted.
        losses: (n,) of the edge model against the full model.
        right: (n,) 1 - the loss of the edge model's answers against the labels, and of the full model's, 0 for rows
            without a label; None without labels.
        labelled: number of rows with a label.
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
        shares = (among_accepted(edge) + full.sum() - among_accepted(full)) / labelled
    return Curve(
        thresholds=np.concatenate([[np.inf], descending[accepted[1:] - 1]]),
        escalated=1 - accepted / len(scores),
        accuracy=shares,
        disagreement=np.where(accepted > 0, among_accepted(losses) / np.maximum(accepted, 1), np.nan),
    )


class Bin(NamedTuple):
    """Rows whose probability is at least `low` and below `high`: its mean, and the share of right answers."""

    low: float
    high: float
    probability: float
    right: Share


class Reliability(NamedTuple):
    """How well probabilities match the share of right answers.

    Attributes:
        bins: those with rows, ascending.
        error: the expected calibration error: the gap between accuracy and mean probability, averaged over the rows.
    """

    bins: tuple[Bin, ...]
    error: float


def reliability(probabilities: Floats, right: Bools) -> Reliability:
    """Compares the model's probabilities with the share of correct answers.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", with bins of equal width.

    Args:
        probabilities: (n,) in [0, 1], of the likeliest class.
        right: (n,).
    """
    count = RELIABILITY_BINS
    place = np.clip((probabilities * count).astype(np.intp), 0, count - 1)
    bins = []
    for at in np.unique(place).tolist():
        rows = place == at
        found = share(int(right[rows].sum()), int(rows.sum()))
        bins.append(Bin(at / count, (at + 1) / count, float(probabilities[rows].mean()), found))
    error = sum(each.right.rows * abs(each.right.value - each.probability) for each in bins) / len(right)
    return Reliability(tuple(bins), error)


@dataclass(frozen=True, slots=True, eq=False)
class ReportData:
    """Figures of one edge variant; those that need labels or the full model are None without them.

    An answer is right if it has no loss against its label, see `Task.truth_loss`; of graded losses, 1 - their mean.

    Attributes:
        score: name of the score, for axes.
        threshold: from which answers are accepted, the lowest of any class.
        quality: the task's own figures, empty without labels.
        certificate: of the variant; None without a valid one.
        uncertified: reason for a missing certificate, as part of a sentence, or "".
        graded: whether losses lie between 0 and 1, so that figures are means, and no shares of answers.
        edge, full: share of right answers of each model alone, of the rows with a label.
        tiered: share of right answers, as the bundle's policy routes them.
        escalated: by that policy, of all rows.
        disagreement: mean loss of the answers that it accepts against the full model's.
        auroc: of the score, for "edge disagrees with full", see `is_lost`; None if no row disagrees, or all do.
        curve: the results of other thresholds.
        scores, lost: (n,) of the edge answers, and whether they disagree.
        reliability: of a classifier's probabilities.
    """

    variant: str
    score: str
    threshold: float
    classes: int
    quality: Quality
    certificate: Certificate | None
    uncertified: str
    graded: bool
    edge: Share | None
    full: Share | None
    tiered: Share | None
    escalated: Share | None
    disagreement: Share | None
    auroc: float | None
    curve: Curve | None
    scores: Floats
    lost: Bools
    reliability: Reliability | None

    @property
    def right(self) -> str:
        """The name of the share of right answers."""
        return "1 - mean loss" if self.graded else "right answers"

    @property
    def differing(self) -> str:
        """The name of the disagreement."""
        if self.graded:
            return "mean loss of accepted edge answers against the full model's"
        return "accepted edge answers that disagree with the full model"


def report_data(measured: Measured, edge: EdgeRun, quality: Quality) -> ReportData:
    """Returns the numbers of one variant.

    Args:
        measured: the measurement.
        edge: one of its variants.
        quality: see `quality_of`.
    """
    manifest, answers, full, truth = measured.manifest, edge.answers, measured.full, measured.truth
    task, rule, rows, accepted = manifest.task, manifest.policy.score, len(measured.sizes), edge.accepted
    models = [answers.outputs, *([full.outputs] if full is not None else [])]
    right, labelled = list[Floats](), np.zeros(rows, np.bool_)
    if truth is not None and task.judges_rows:  # the loss of a row without a label is 1
        labelled = task.labelled(truth)
        right = [1 - task.truth_loss(outputs, truth).astype(np.float64) for outputs in models]
    judged = int(labelled.sum())
    both = (right[0], right[1]) if len(right) == 2 else None
    losses = np.zeros(0) if full is None else task.loss(answers.outputs, full.outputs).astype(np.float64)
    lost = is_lost(losses) if full is not None else np.zeros(0, np.bool_)
    reliable = None
    if right and isinstance(task, Classification):
        likeliest = temper(answers.probabilities, rule.temperature).max(axis=1).astype(np.float64)
        reliable = reliability(likeliest[labelled], right[0][labelled] == 1)
    return ReportData(
        variant=answers.model.id,
        score=rule.kind.replace("_", " ") + (f", temperature {rule.temperature:g}" if rule.temperature != 1 else ""),
        threshold=edge.threshold,
        classes=len(manifest.labels),
        quality=quality,
        certificate=valid_certificate(manifest, answers.model),
        uncertified=certificate_problem(manifest, answers.model),
        graded=is_graded(losses) or any(map(is_graded, right)),
        edge=share(float(right[0].sum()), judged) if right else None,
        full=share(float(both[1].sum()), judged) if both else None,
        tiered=share(float(both[0][accepted].sum() + both[1][~accepted].sum()), judged) if both else None,
        escalated=share(int((~accepted).sum()), rows) if full is not None else None,
        disagreement=share(float(losses[accepted].sum()), int(accepted.sum())) if full is not None else None,
        auroc=auroc(edge.scores, lost) if full is not None else None,
        curve=curve(edge.scores, losses, both, judged) if full is not None else None,
        scores=edge.scores,
        lost=lost,
        reliability=reliable,
    )


def quality_of(variant: Variant, evaluation: Evaluation) -> Quality:
    """Returns the figures of one variant."""
    tiered = variant.tiered.quality if variant.tiered is not None else {}
    full = evaluation.full.quality if evaluation.full is not None else {}
    return {
        name: (value, tiered.get(name, math.nan), full.get(name, math.nan))
        for name, value in variant.edge.quality.items()
    }


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
    step = next((step for step in edge.answers.model.presteps if isinstance(step, Decode)), None)
    if full is None or dataset.media is None or step is None:
        return
    losses = task.loss(edge.answers.outputs, full.outputs)
    ordered = np.lexsort((-losses, ~edge.accepted))
    rows = ordered[losses[ordered] > 0][:most].tolist()
    some = replace(dataset, samples=tuple(dataset.samples[row] for row in rows))
    for row, sample, content in zip(rows, some.samples, some.contents(), strict=True):
        image = decode(content, msgspec.structs.replace(step, mode="RGB"), dataset.place_of(sample))
        drawn = (task.draw(image, run.outputs, row) for run in (edge.answers, full))
        scaled = (each.resize(size_within(each.size, _PICTURE)) for each in drawn)
        yield Disagreement(sample.file, bool(edge.accepted[row]), *scaled)
