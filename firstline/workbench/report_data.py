"""The numbers behind the plots and the page of `firstline evaluate --plots`: pure functions of a measurement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.evaluate import EdgeRun, Measured
from firstline.workbench.observe import Answers
from firstline_core.bundle.manifest import certificate_problem, valid_certificate
from firstline_core.routing import binomial
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.policy import auroc
from firstline_core.tasks.classification import temper

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RELIABILITY_BINS = 15
"""Of equal width, as in the literature, so that errors of calibration compare."""
HISTOGRAM_BINS = 30


@dataclass(frozen=True, slots=True)
class Share:
    """A share of counted rows with its 95 % Clopper-Pearson interval.

    Attributes:
        value: hits / rows.
        low, high: ends of the interval; 0 and 1 without rows.
    """

    hits: int
    rows: int
    value: float
    low: float
    high: float


def share(hits: int, rows: int, level: float = 0.05) -> Share:
    """Returns the share with its two-sided Clopper-Pearson interval of confidence 1 - `level`."""
    if not rows:
        return Share(0, 0, float("nan"), 0.0, 1.0)
    low = 1 - binomial.upper_bound(rows - hits, rows, level / 2)
    return Share(hits, rows, hits / rows, low, binomial.upper_bound(hits, rows, level / 2))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The results of all thresholds, from escalating everything to accepting everything: (m,) each.

    Attributes:
        thresholds: decreasing, from infinity.
        escalated: share of all rows, decreasing.
        accuracy: of all answers together.
        disagreement: of the accepted edge answers, those with another label by the full model; NaN if none is accepted.
    """

    thresholds: Floats
    escalated: Floats
    accuracy: Floats
    disagreement: Floats

    def at(self, escalated: float) -> int:
        """Returns the position of the threshold that escalates this share of the rows, or the next smaller share."""
        position = int(np.searchsorted(-self.escalated, -escalated - 1e-12))
        return min(position, len(self.escalated) - 1)


def curve(scores: Floats, edge_right: Bools, full_right: Bools, agrees: Bools) -> Curve:
    """Returns the results of all thresholds; rows of equal score are accepted together.

    Args:
        scores: (n,), a higher value means accept; NaN is never accepted.
        edge_right: (n,) whether the edge model is right.
        full_right: (n,) whether the full model is right.
        agrees: (n,) whether both give the same label.
    """
    order = np.argsort(-scores, kind="stable")[: len(scores) - int(np.isnan(scores).sum())]  # NaN sorts last
    descending = scores[order]
    accepted = np.concatenate([[0], np.unique(np.searchsorted(-descending, -descending, side="right"))])

    def among_accepted(rows: Bools) -> Floats:
        counts: Floats = np.concatenate([[0.0], np.cumsum(rows[order])])[accepted]
        return counts

    right = among_accepted(edge_right) + full_right.sum() - among_accepted(full_right)
    return Curve(
        thresholds=np.concatenate([[np.inf], descending[accepted[1:] - 1]]),
        escalated=1 - accepted / len(scores),
        accuracy=right / len(scores),
        disagreement=np.where(accepted > 0, among_accepted(~agrees) / np.maximum(accepted, 1), np.nan),
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
        agreeing: (bins,) rows in which both models agree.
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
        full: share of right answers of the full model alone.
        accuracy: of all answers as the bundle's policy routes them.
        escalated: by that policy, of all rows.
        disagreement: of the answers that it accepts.
        auroc: of the score, for "edge disagrees with full"; None if no row disagrees, or all do.
        curve: the results of other thresholds.
        scores: of agreeing and disagreeing answers.
    """

    full: Share
    accuracy: Share
    escalated: Share
    disagreement: Share
    auroc: float | None
    curve: Curve
    scores: Histograms


@dataclass(frozen=True, slots=True, eq=False)
class ReportData:
    """One edge variant.

    Attributes:
        score: name of the score, for axes.
        threshold: from which answers are accepted, the lowest of any class.
        edge: share of right answers of the edge model alone.
        reliability: of the edge model's probabilities.
        certificate: of the variant; None without a valid one.
        uncertified: reason for a missing certificate, as part of a sentence, or "".
        tiers: None if the bundle has no full model.
    """

    variant: str
    score: str
    threshold: float
    classes: int
    rows: int
    edge: Share
    reliability: Reliability
    certificate: Certificate | None
    uncertified: str
    tiers: Tiers | None


def report_data(measured: Measured, edge: EdgeRun) -> ReportData:
    """Returns the numbers of one variant."""
    manifest, answers = measured.manifest, edge.answers
    right, rule = answers.labels == measured.truth, manifest.policy.score
    confidences = temper(answers.probabilities, rule.temperature).max(axis=1).astype(np.float64)
    return ReportData(
        variant=answers.model.id,
        score=rule.kind.replace("_", " ") + (f", temperature {rule.temperature:g}" if rule.temperature != 1 else ""),
        threshold=edge.threshold,
        classes=len(manifest.labels),
        rows=len(right),
        edge=share(int(right.sum()), len(right)),
        reliability=reliability(confidences, right),
        certificate=valid_certificate(manifest, answers.model),
        uncertified=certificate_problem(manifest, answers.model),
        tiers=_tiers(measured, edge, measured.full) if measured.full is not None else None,
    )


def _tiers(measured: Measured, edge: EdgeRun, full: Answers) -> Tiers:
    rows, accepted, agrees = len(measured.truth), edge.accepted, edge.answers.labels == full.labels
    edge_right, full_right = edge.answers.labels == measured.truth, full.labels == measured.truth
    right = int(edge_right[accepted].sum() + full_right[~accepted].sum())
    return Tiers(
        full=share(int(full_right.sum()), rows),
        accuracy=share(right, rows),
        escalated=share(int((~accepted).sum()), rows),
        disagreement=share(int((~agrees[accepted]).sum()), int(accepted.sum())),
        auroc=auroc(edge.scores, ~agrees),
        curve=curve(edge.scores, edge_right, full_right, agrees),
        scores=histograms(edge.scores, agrees),
    )
