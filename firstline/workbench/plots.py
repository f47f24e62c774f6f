"""Draws the numbers of a report as PNG images for light and for dark pages. Needs matplotlib: `firstline[analysis]`."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from firstline.workbench.report_data import Reliability, ReportData, Share, Tiers
from firstline_core.routing.certificate import points

# Small, so that letters stay readable where a phone shows it at its own width.
_INCHES = (5.12, 3.7)
_DOTS_PER_INCH = 250


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours, told apart in grey and by the colour-blind too."""

    paper: str
    ink: str
    faint: str
    first: str
    second: str


LIGHT = Theme(paper="#ffffff", ink="#1d2329", faint="#c9d0d6", first="#0b62b8", second="#c2490c")
DARK = Theme(paper="#161b20", ink="#e4e8eb", faint="#4a545d", first="#6db3f8", second="#ff9e57")


def accuracy(data: ReportData, tiers: Tiers, right: str, theme: Theme) -> bytes:
    """Accuracy of all answers against the share that is escalated."""

    def draw(figure: Figure) -> None:
        axes, curve = figure.subplots(), tiers.curve
        edge, full, both = data.edge, tiers.full, tiers.accuracy
        if curve.accuracy is None or edge is None or full is None or both is None:
            return  # the caller draws labelled data only
        axes.plot(curve.escalated, curve.accuracy, color=theme.first, label="by threshold of the score")
        ends = (edge.value, full.value)
        axes.plot((0, 1), ends, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), label="escalating at random")
        if data.certificate is not None and data.certificate.contract == "stream":
            least = full.value - data.certificate.epsilon
            promised = f"certified: at most {points(data.certificate.epsilon)} below the full model"
            axes.axhline(least, color=theme.ink, linewidth=1, linestyle=(0, (1, 2)), label=promised)
        _point(axes, tiers.escalated, both, theme, "this bundle, with its 95 % interval")
        _percent(axes, "escalated to the full model (% of answers)", f"{right} (%)")
        axes.set_xlim(-0.02, 1.02)
        axes.legend(loc="lower right")

    return rendered(draw, theme)


def risk(tiers: Tiers, epsilon: float | None, by: str, lost: str, theme: Theme) -> bytes:
    """Disagreement among accepted edge answers against the share that is escalated.

    Args:
        tiers: the data to draw.
        epsilon: the certified bound; None without a certificate.
        by: of what groups it does, each by itself; "" for all answers together.
        lost: name of the disagreement.
        theme: colours.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(tiers.curve.escalated, tiers.curve.disagreement, color=theme.first, label="by threshold of the score")
        if epsilon is not None:
            promised = f"certified{', in each ' + by if by else ''}: at most {100 * epsilon:.4g} %"
            axes.axhline(epsilon, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), label=promised)
        if tiers.disagreement.rows:
            _point(axes, tiers.escalated, tiers.disagreement, theme, "this bundle, with its 95 % interval")
        _percent(axes, "escalated to the full model (% of answers)", f"{lost} (%)")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper right")

    return rendered(draw, theme)


def reliability(data: Reliability, theme: Theme) -> bytes:
    """Share of right answers against the probability that the edge model gives them, and how many there are."""

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        bins = data.bins
        upper.plot((0, 1), (0, 1), color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), label="perfectly calibrated")
        values = np.array([group.right.value for group in bins])
        ends = np.array([(group.right.low, group.right.high) for group in bins])
        upper.errorbar(
            [group.probability for group in bins],
            values,
            yerr=np.abs(ends.T - values),
            fmt="o",
            markersize=5,
            capsize=2,
            elinewidth=1,
            color=theme.first,
            label="edge model, with 95 % intervals",
        )
        counts = [group.right.rows for group in bins]
        middles, widths = zip(*(((b.low + b.high) / 2, 0.9 * (b.high - b.low)) for b in bins), strict=True)
        lower.bar(middles, counts, widths, color=theme.first)
        _counted(lower, max(counts))
        _percent(upper, "", "right answers (%)")
        lower.set_xlabel("probability that the edge model gives its answer (%)")
        lower.xaxis.set_major_formatter(_FORMATTER)
        upper.set_xlim(-0.02, 1.02)
        upper.set_ylim(-0.04, 1.04)
        upper.set_title(f"expected calibration error {100 * data.error:.1f} %", loc="left")
        figure.legend(loc="outside upper left", ncols=2)

    return rendered(draw, theme)


def scores(data: ReportData, tiers: Tiers, kinds: tuple[str, str], theme: Theme) -> bytes:
    """How scores lie, of the answers that agree with the full model and of those that do not."""

    def draw(figure: Figure) -> None:
        histograms = tiers.scores
        marked = bool(histograms.edges[0] <= data.threshold <= histograms.edges[-1])
        by = data.certificate.by if data.certificate is not None else ""
        meaning = f"some are accepted from here on, by {by}" if by else "accepted from here on"
        middles, widths = (histograms.edges[:-1] + histograms.edges[1:]) / 2, 0.9 * np.diff(histograms.edges)
        panels = (
            (kinds[0], histograms.agreeing, theme.first),
            (kinds[1], histograms.disagreeing, theme.second),
        )
        for axes, (name, counts, colour) in zip(figure.subplots(2, 1, sharex=True), panels, strict=True):
            axes.bar(middles, counts, widths, color=colour)
            _counted(axes, int(max(histograms.agreeing.max(), histograms.disagreeing.max(), 1)))
            axes.set_title(f"{int(counts.sum())} answers {name}", loc="left")
            if marked:
                axes.axvline(data.threshold, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), label=meaning)
        if marked:
            axes.legend(loc="upper left")
        axes.set_xlabel(f"score of the edge answer ({data.score})")

    return rendered(draw, theme)


_FORMATTER = FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}")


def _counted(axes: Axes, most: int) -> None:
    """Counts of rows, from one to thousands: in logarithms, so that bars of a few rows are seen."""
    axes.set_yscale("log")
    axes.set_ylim(0.7, 2 * most)
    axes.set_ylabel("rows")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _percent(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.xaxis.set_major_formatter(_FORMATTER)
    axes.yaxis.set_major_formatter(_FORMATTER)


def _point(axes: Axes, across: Share, up: Share, theme: Theme, label: str) -> None:
    axes.errorbar(
        across.value,
        up.value,
        xerr=[[across.value - across.low], [across.high - across.value]],
        yerr=[[up.value - up.low], [up.high - up.value]],
        fmt="o",
        markersize=6,
        capsize=3,
        color=theme.second,
        label=label,
        zorder=3,
    )


def rendered(draw: Callable[[Figure], None], theme: Theme) -> bytes:
    """Returns a figure as PNG; the same figure gives the same bytes."""
    style: Any = {
        "font.size": 10,
        "text.color": theme.ink,
        "axes.edgecolor": theme.faint,
        "axes.facecolor": theme.paper,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.labelcolor": theme.ink,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 10,
        "figure.constrained_layout.use": True,
        "figure.facecolor": theme.paper,
        "grid.color": theme.faint,
        "grid.alpha": 0.4,
        "legend.fontsize": 9,
        # Words that a line crosses stay legible.
        "legend.facecolor": theme.paper,
        "legend.edgecolor": "none",
        "legend.framealpha": 0.85,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH)
        draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
