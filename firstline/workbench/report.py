"""Writes what was measured of a bundle as plots and a page: PNG files and `index.html` in a folder."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from firstline.workbench import report_page
from firstline.workbench.measure import Measured
from firstline.workbench.report_data import ReportData, Tiers, sheet
from firstline.workbench.report_page import Plot
from firstline_core.errors import ConfigError

PAGE_NAME = "index.html"


def require_drawing(folder: Path) -> None:
    """Finds out before models run for minutes whether there is a page to come.

    Args:
        folder: where plots are to go; made where it is missing.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be made.
    """
    _plots()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made: {error.strerror}; name another with --plots."
        ) from error


def write_report(measured: Measured, folder: Path) -> Path:
    """Draws every variant.

    Args:
        measured: with an edge variant at least.
        folder: gets `VARIANT-PLOT.png` and the page; files of these names are replaced.

    Returns:
        The page.

    Raises:
        ConfigError: nothing to draw, matplotlib is not installed, or the folder cannot be written.
    """
    if not measured.edges:
        raise ConfigError(f"Bundle '{measured.manifest.name}' has no edge variant; there is nothing to draw.")
    require_drawing(folder)
    sections = [(found, _drawn(found)) for found in (sheet(measured, edge) for edge in measured.edges)]
    title = f"{measured.manifest.name} version {measured.manifest.version}"
    about = f"Measured on {len(measured.truth)} labelled images of {measured.data}."
    try:
        for found, plots in sections:
            for plot in plots:
                (folder / f"{found.variant}-{plot.name}.png").write_bytes(plot.light)
        (folder / PAGE_NAME).write_text(report_page.html(title, about, sections), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The plots cannot be written to {folder}: {error.strerror}.") from error
    return folder / PAGE_NAME


def _plots() -> ModuleType:
    try:
        from firstline.workbench import plots
    except ImportError as error:
        raise ConfigError("Plots are drawn with matplotlib: pip install 'firstline[analysis]'.") from error
    return plots


def _drawn(found: ReportData) -> tuple[Plot, ...]:
    if found.tiers is None:
        return (_reliability(found),)
    accuracy, risk, scores = _of_tiers(found, found.tiers)
    return (accuracy, risk, _reliability(found), scores)


def _reliability(found: ReportData) -> Plot:
    plots = _plots()
    return Plot(
        "reliability",
        "Whether the edge model's probabilities mean what they say",
        f"Reliability diagram: the expected calibration error is {report_page.percent(found.reliability.error)} %.",
        plots.reliability(found, plots.LIGHT),
        plots.reliability(found, plots.DARK),
        report_page.reliability_table(found),
    )


def _of_tiers(found: ReportData, tiers: Tiers) -> tuple[Plot, Plot, Plot]:
    plots = _plots()
    promised = found.certificate if found.certificate and found.certificate.contract == "disagreement" else None
    epsilon, by = (promised.epsilon, promised.by) if promised is not None else (None, "")
    escalated = f"{report_page.percent(tiers.escalated.value)} %"
    accuracy = Plot(
        "accuracy",
        "Right answers by how many are escalated",
        f"Accuracy goes from {report_page.percent(found.edge.value)} % with nothing escalated to "
        f"{report_page.percent(tiers.full.value)} % with everything. This bundle escalates {escalated} and has "
        f"{report_page.percent(tiers.accuracy.value)} % right, 95 % interval {report_page.interval(tiers.accuracy)} %.",
        plots.accuracy(found, tiers, plots.LIGHT),
        plots.accuracy(found, tiers, plots.DARK),
        report_page.curve_table(tiers),
    )
    risk = Plot(
        "risk",
        "Kept answers that the full model contradicts",
        f"Of the answers that this bundle keeps, {report_page.percent(tiers.disagreement.value)} % disagree with the "
        f"full model, 95 % interval {report_page.interval(tiers.disagreement)} %; it escalates {escalated}.",
        plots.risk(tiers, epsilon, by, plots.LIGHT),
        plots.risk(tiers, epsilon, by, plots.DARK),
        report_page.curve_table(tiers),
    )
    scores = Plot(
        "scores",
        "Scores of answers that agree with the full model, and of those that do not",
        f"Two histograms of the score: {tiers.scores.agreeing.sum()} answers agree, "
        f"{tiers.scores.disagreeing.sum()} disagree. Answers are kept from {found.threshold:.6g} on.",
        plots.scores(found, tiers, plots.LIGHT),
        plots.scores(found, tiers, plots.DARK),
        report_page.scores_table(tiers),
    )
    return accuracy, risk, scores
