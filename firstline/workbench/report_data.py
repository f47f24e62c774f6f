"""All that plots and page show of one edge variant, counted from a measurement. Pure: nothing is drawn or written."""

from __future__ import annotations

from dataclasses import dataclass

from firstline.workbench.curves import (
    Curve,
    Histograms,
    Reliability,
    Share,
    curve,
    histograms,
    reliability,
    share,
)
from firstline.workbench.measure import EdgeRun, Measured, ModelRun
from firstline_core.bundle.manifest import certificate_problem, valid_certificate
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.confidence import auroc


@dataclass(frozen=True, slots=True, eq=False)
class Tiers:
    """An edge variant with the full model behind it.

    Attributes:
        full: share of right answers of the full model alone.
        accuracy: of all answers as the bundle's policy routes them.
        escalated: by that policy, of all rows.
        disagreement: of the answers that it keeps.
        auroc: of the score, for "edge disagrees with full"; None where none disagrees, or all do.
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
        score: the score's name, as axes have it.
        threshold: from which answers are kept, the lowest of any class.
        edge: share of right answers of the edge model alone.
        reliability: of the edge model's probabilities.
        certificate: the variant's, where it is valid.
        uncertified: why there is none, as part of a sentence; "" where there is one.
        tiers: None where the bundle has no full model.
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


def sheet(measured: Measured, edge: EdgeRun) -> ReportData:
    """Counts what one variant gave."""
    manifest, right = measured.manifest, edge.labels == measured.truth
    rule = manifest.policy.score
    return ReportData(
        variant=edge.model.id,
        score=rule.kind.replace("_", " ") + (f", temperature {rule.temperature:g}" if rule.temperature != 1 else ""),
        threshold=edge.threshold,
        classes=len(manifest.labels),
        rows=len(right),
        edge=share(int(right.sum()), len(right)),
        reliability=reliability(edge.probabilities, right),
        certificate=valid_certificate(manifest, edge.model),
        uncertified=certificate_problem(manifest, edge.model),
        tiers=_tiers(measured, edge, measured.full) if measured.full is not None else None,
    )


def _tiers(measured: Measured, edge: EdgeRun, full: ModelRun) -> Tiers:
    rows, kept, agrees = len(measured.truth), edge.kept, edge.labels == full.labels
    edge_right, full_right = edge.labels == measured.truth, full.labels == measured.truth
    right = int(edge_right[kept].sum() + full_right[~kept].sum())
    return Tiers(
        full=share(int(full_right.sum()), rows),
        accuracy=share(right, rows),
        escalated=share(int((~kept).sum()), rows),
        disagreement=share(int((~agrees[kept]).sum()), int(kept.sum())),
        auroc=auroc(edge.scores, ~agrees),
        curve=curve(edge.scores, edge_right, full_right, agrees),
        scores=histograms(edge.scores, agrees),
    )
