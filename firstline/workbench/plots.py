"""Draws the numbers of a report as PNG, whose transparent ground suits light and dark pages. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from firstline.workbench.report_data import RELIABILITY_BINS, Curve, Floats, Reliability, ReportData, Share
from firstline_core.routing.certificate import points

_GREY, _FIRST, _SECOND = "#7d858c", "#3b82f6", "#d97706"
_COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "legend.labelcolor")
_STYLE: Any = {
    **dict.fromkeys(_COLOURED, _GREY),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "legend.fontsize": 9,
    "legend.frameon": False,
}
_DASHED: Any = {"color": _GREY, "linewidth": 1, "linestyle": (0, (4, 3))}
_HISTOGRAM_BINS = 30
_PERCENT = FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}")


class Plot(NamedTuple):
    """A drawn plot.

    Attributes:
        name: of its file, without the variant.
        alt: a description for readers who cannot see the plot.
    """

    name: str
    title: str
    alt: str
    png: bytes


def drawn(data: ReportData) -> Iterator[Plot]:
    """Yields the plots of one variant, as far as labels and full model allow."""
    if data.curve is not None and data.curve.accuracy is not None:
        yield _accuracy(data, data.curve.escalated, data.curve.accuracy)
    if data.curve is not None:
        yield _risk(data, data.curve)
    if data.reliability is not None:
        yield _reliability(data.reliability)
    if data.curve is not None:
        yield _scores(data)


def _accuracy(data: ReportData, of_curve: Floats, accuracy: Floats) -> Plot:
    """Right answers of all together against the share that is escalated."""
    edge, full, both, escalated = data.edge, data.full, data.tiered, data.escalated
    assert edge and full and both and escalated  # noqa: S101 (labels and a full model)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(of_curve, accuracy, color=_FIRST, label="by threshold of the score")
        axes.plot((0, 1), (edge.value, full.value), **_DASHED, label="escalating at random")
        if data.certificate is not None and data.certificate.contract == "stream":
            promised = f"certified: at most {points(data.certificate.epsilon)} below the full model"
            axes.axhline(full.value - data.certificate.epsilon, **_DASHED, label=promised)
        _point(axes, escalated, both)
        _percent(axes, "escalated to the full model (% of answers)", f"{data.right} (%)")
        axes.legend(loc="lower right")

    return Plot(
        "accuracy",
        f"{data.right.capitalize()} by how many are escalated",
        f"From {edge.value:.2%} with nothing escalated to {full.value:.2%} with everything. This bundle escalates "
        f"{escalated.value:.2%} and has {both.value:.2%}, 95 % interval {both.low:.2%} to {both.high:.2%}.",
        _png(draw),
    )


def _risk(data: ReportData, curve: Curve) -> Plot:
    """Disagreement among accepted edge answers against the share that is escalated."""
    found, escalated, certificate = data.disagreement, data.escalated, data.certificate
    assert found and escalated  # noqa: S101 (there is a full model)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(curve.escalated, curve.disagreement, color=_FIRST, label="by threshold of the score")
        if certificate is not None and certificate.contract == "disagreement":
            by = f", in each {certificate.by}" if certificate.by else ""
            promised = f"certified{by}: at most {100 * certificate.epsilon:.4g} %"
            axes.axhline(certificate.epsilon, **_DASHED, label=promised)
        if found.rows:
            _point(axes, escalated, found)
        lost = "mean loss of accepted answers" if data.graded else "accepted answers that disagree"
        _percent(axes, "escalated to the full model (% of answers)", f"{lost} (%)")
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper right")

    return Plot(
        "risk",
        f"{data.differing.capitalize()}, by how many are escalated",
        f"{data.differing.capitalize()}: {found.value:.2%} for this bundle, 95 % interval {found.low:.2%} to "
        f"{found.high:.2%}; it escalates {escalated.value:.2%}.",
        _png(draw),
    )


def _reliability(data: Reliability) -> Plot:
    """Share of right answers against the probability that the edge model gives them, and how many there are."""

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        upper.plot((0, 1), (0, 1), **_DASHED, label="perfectly calibrated")
        values = np.array([each.right.value for each in data.bins])
        ends = np.array([(each.right.low, each.right.high) for each in data.bins])
        upper.errorbar(
            [each.probability for each in data.bins],
            values,
            yerr=np.abs(ends.T - values),
            fmt="o",
            capsize=2,
            color=_FIRST,
            label="edge model, with 95 % intervals",
        )
        counts = [each.right.rows for each in data.bins]
        lower.bar([each.low for each in data.bins], counts, 1 / RELIABILITY_BINS, align="edge", color=_FIRST)
        _counted(lower)
        _percent(upper, "", "right answers (%)")
        lower.set_xlabel("probability that the edge model gives its answer (%)")
        lower.xaxis.set_major_formatter(_PERCENT)
        upper.set_title(f"expected calibration error {data.error:.1%}", loc="left")
        figure.legend(loc="outside upper left", ncols=2)

    return Plot(
        "reliability",
        "Whether the edge model's probabilities mean what they say",
        f"Reliability diagram: the expected calibration error is {data.error:.2%}.",
        _png(draw),
    )


def _scores(data: ReportData) -> Plot:
    """How scores lie, of the answers that agree with the full model and of those that do not."""
    finite = np.isfinite(data.scores)
    agree, disagree = ("have a loss up to the mean", "a larger one") if data.graded else ("agree", "disagree")
    agreeing, disagreeing = data.scores[finite & ~data.lost], data.scores[finite & data.lost]

    def draw(figure: Figure) -> None:
        panels = ((agree, agreeing, _FIRST), (disagree, disagreeing, _SECOND))
        edges = np.histogram_bin_edges(data.scores[finite], _HISTOGRAM_BINS)
        by = f", by {data.certificate.by}" if data.certificate is not None and data.certificate.by else ""
        for axes, (kind, scores, colour) in zip(figure.subplots(2, 1, sharex=True, sharey=True), panels, strict=True):
            axes.hist(scores, edges, color=colour)
            _counted(axes)
            axes.set_title(f"{len(scores)} answers {kind}", loc="left")
            if edges[0] <= data.threshold <= edges[-1]:
                axes.axvline(data.threshold, **_DASHED, label=f"accepted from here on{by}")
                axes.legend(loc="upper left")
        axes.set_xlabel(f"score of the edge answer ({data.score})")

    return Plot(
        "scores",
        f"Scores of answers that {agree} and of those that {disagree}, against the full model's",
        f"Two histograms of the score: {len(agreeing)} answers {agree}, {len(disagreeing)} {disagree}. Answers are "
        f"accepted from {data.threshold:.6g} on.",
        _png(draw),
    )


def _counted(axes: Axes) -> None:
    """Counts of rows, from one to thousands: in logarithms, so that bars of a few rows are seen."""
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    axes.set_ylabel("rows")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _percent(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xlim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.yaxis.set_major_formatter(_PERCENT)


def _point(axes: Axes, across: Share, up: Share) -> None:
    axes.errorbar(
        across.value,
        up.value,
        xerr=[[across.value - across.low], [across.high - across.value]],
        yerr=[[up.value - up.low], [up.high - up.value]],
        fmt="o",
        capsize=3,
        color=_SECOND,
        label="this bundle, with its 95 % interval",
    )


def _png(draw: Callable[[Figure], None]) -> bytes:
    """Returns a figure; the same figure gives the same bytes."""
    with mpl.rc_context(_STYLE):
        figure, file = Figure(figsize=(5.12, 3.7), dpi=250), io.BytesIO()
        draw(figure)
        figure.savefig(file, format="png", transparent=True, metadata={"Software": None})
    return file.getvalue()
