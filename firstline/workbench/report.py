"""Writes the measurements of a bundle as plots and one HTML page: PNG files and `index.html` in a folder.

The page needs no other file, and suits phones, light and dark themes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from firstline.workbench.evaluate import Evaluation, Measured
from firstline.workbench.report_data import Picture, Reliability, ReportData, Share, Tiers, quality_of, report_data
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import points
from firstline_core.storage.files import system_reason

_STEPS = 20


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn plot with its description and numbers.

    Attributes:
        name: of its file, without the variant.
        alt: a description for readers who cannot see the plot.
        light, dark: PNG images.
        table: the same numbers.
    """

    name: str
    title: str
    alt: str
    light: bytes
    dark: bytes
    table: Table


@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers as text; the first column names the row."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def html(title: str, about: str, sections: Iterable[tuple[ReportData, Sequence[Plot]]]) -> str:
    """Returns the page.

    Args:
        title: the bundle.
        about: a sentence about the measurement and its data.
        sections: each variant with its plots.
    """
    body = "\n".join(_section(data, plots) for data, plots in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p>{escape(about)}</p>
{body}
</main>
</body>
</html>
"""


class Words(NamedTuple):
    """The names of figures.

    Attributes:
        right: share of right answers.
        lost: share of the accepted edge answers that disagree with the full model.
        agree, disagree: the two kinds of answers.
    """

    right: str
    lost: str
    agree: str
    disagree: str

    @classmethod
    def of(cls, data: ReportData) -> Words:
        """Returns the names; shares are means of losses that lie between 0 and 1."""
        if data.graded:
            mean = "mean loss of accepted edge answers against the full model's"
            return cls("1 - mean loss", mean, "have a loss up to the mean", "have a larger one")
        lost = "accepted edge answers that disagree with the full model"
        return cls("right answers", lost, "agree with the full model", "disagree")


def figures(data: ReportData) -> Table:
    """Returns the variant's figures with their intervals."""
    words = Words.of(data)
    shares: list[tuple[str, Share | None]] = [(f"{words.right}, edge model alone", data.edge)]
    if (tiers := data.tiers) is not None:
        shares += [
            (f"{words.right}, both tiers", tiers.accuracy),
            (f"{words.right}, full model alone", tiers.full),
            ("escalated to the full model", tiers.escalated),
            (words.lost, tiers.disagreement),
        ]
    return Table(
        "What this data shows",
        ("", "%", "95 % interval", "rows"),
        [
            (name, percent(share.value), interval(share), f"{share.hits:g} of {share.rows}")
            for name, share in shares
            if share is not None
        ],
    )


def quality_table(data: ReportData) -> Table:
    """Returns the task's own figures of the edge model, of both tiers and of the full model."""
    rows = [(name, *(_number(value) for value in values)) for name, values in data.quality.items()]
    return Table("Quality against the labels", ("", "edge model", "both tiers", "full model"), rows)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def curve_table(data: ReportData, tiers: Tiers) -> Table:
    """Returns the curve at every twentieth of the answers."""
    curve, words = tiers.curve, Words.of(data)
    right = (f"{words.right}, %",) if curve.accuracy is not None else ()
    lost = "mean loss of accepted, %" if data.graded else "accepted that disagree, %"
    positions = sorted({curve.at(step / _STEPS) for step in range(_STEPS + 1)}, reverse=True)
    return Table(
        "By threshold of the score",
        ("escalated, %", "accepted from a score of", *right, lost),
        [
            (
                percent(curve.escalated[position]),
                "none is accepted" if position == 0 else f"{curve.thresholds[position]:.6g}",
                *(percent(shares[position]) for shares in (curve.accuracy,) if shares is not None),
                percent(curve.disagreement[position]),
            )
            for position in positions
        ],
    )


def reliability_table(reliability: Reliability) -> Table:
    """Returns the bins of the reliability diagram."""
    return Table(
        f"Expected calibration error {percent(reliability.error)} %",
        ("probability, %", "mean, %", "right, %", "95 % interval", "rows"),
        [
            (
                f"{percent(group.low)} to {percent(group.high)}",
                percent(group.probability),
                percent(group.right.value),
                interval(group.right),
                str(group.right.rows),
            )
            for group in reliability.bins
        ],
    )


def scores_table(data: ReportData, tiers: Tiers) -> Table:
    """Returns the bars of the histograms, without scores that never occur."""
    histograms = tiers.scores
    counts = histograms.agreeing.tolist(), histograms.disagreeing.tolist()
    bars = zip(histograms.edges, histograms.edges[1:], *counts, strict=False)
    return Table(
        "Rows by score",
        ("score", Words.of(data).agree, Words.of(data).disagree),
        [
            (f"{low:.4g} to {high:.4g}", str(agreeing), str(disagreeing))
            for low, high, agreeing, disagreeing in bars
            if agreeing or disagreeing
        ],
    )


def certificate_sentence(data: ReportData) -> str:
    """Returns the promise of this variant, or the reason why it has none."""
    certificate = data.certificate
    if certificate is None:
        return (
            f"Not certified: {data.uncertified}. Answers are accepted from a score of {data.threshold:.6g} on, and say "
            "that they are not certified."
        )
    risk = f"risk was {percent(certificate.risk_upper)} %"
    if certificate.contract == "stream":
        risk = f"accuracy given up was {points(certificate.risk_upper)}"
    rule = f"answers are accepted from a score of {certificate.threshold:.6g} on"
    if certificate.by:
        thresholds = [group.threshold for group in certificate.groups.values() if group.threshold is not None]
        rule = (
            f"answers are accepted from the score of their class on, {min(thresholds):.6g} to {max(thresholds):.6g}, "
            f"in {len(thresholds)} of {data.classes} classes; of the others nothing is proved, and none is accepted"
        )
    return (
        f"Certified: {certificate.promise}. Proved on {certificate.n} rows: {rule}. That accepted "
        f"{percent(certificate.kept)} % of them, and the upper bound of the {risk}."
    )


def area(tiers: Tiers) -> str:
    """Returns the AUROC of the score for "edge disagrees with full", as text."""
    value = "n/a" if tiers.auroc is None else f"{tiers.auroc:.3f}"
    return f'AUROC of the score for "edge disagrees with full": {value}.'


def percent(value: float) -> str:
    """Returns a percentage without its sign, which the column's head has; "-" for an unknown value."""
    return "-" if math.isnan(value) else f"{100 * value:.2f}"


def interval(share: Share) -> str:
    return f"{percent(share.low)} to {percent(share.high)}"


def _section(data: ReportData, plots: Sequence[Plot]) -> str:
    drawn = "\n".join(_figure(plot) for plot in plots)
    quality = "\n" + _table(quality_table(data)) if data.quality else ""
    paragraph = f"\n<p>{escape(area(data.tiers))}</p>" if data.tiers is not None else ""
    return f"""<section>
<h2>{escape(data.variant)}</h2>
<p class="certificate">{escape(certificate_sentence(data)).replace(" %", "&nbsp;%")}</p>
{_table(figures(data))}{quality}{paragraph}
{drawn}{_disagreements(data.pictures)}
</section>"""


def _disagreements(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    rows = "\n".join(
        f"<figure><figcaption>{escape(picture.name)}</figcaption>"
        f'<div class="pair">{_answer(picture.edge, picture.name, "edge")}{_answer(picture.full, picture.name, "full")}'
        "</div></figure>"
        for picture in pictures
    )
    return (
        f"\n<h3>Accepted answers of the edge model (left) that differ most from the full model's (right)</h3>\n{rows}"
    )


def _answer(jpeg: bytes, name: str, model: str) -> str:
    return f'<img src="{_inline(jpeg, "jpeg")}" alt="{escape(name)} with the answer of the {model} model">'


def _figure(plot: Plot) -> str:
    return f"""<figure>
<figcaption>{escape(plot.title)}</figcaption>
<picture>
<source srcset="{_inline(plot.dark)}" media="(prefers-color-scheme: dark)">
<img src="{_inline(plot.light)}" alt="{escape(plot.alt)}">
</picture>
<details>
<summary>The same in numbers</summary>
{_table(plot.table)}
</details>
</figure>"""


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    return f"""<div class="table" role="region" tabindex="0" aria-label="{escape(table.caption)}"><table>
<caption>{escape(table.caption)}</caption>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>"""


def _inline(encoded: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(encoded).decode()


_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --faint: #c9d0d6; --mark: #eef3f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161b20; --ink: #e4e8eb; --faint: #4a545d; --mark: #202a33; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; }
h1, h2 { line-height: 1.25; overflow-wrap: anywhere; }
.certificate { background: var(--mark); border-radius: .5rem; padding: .75rem 1rem; }
figure { margin: 2rem 0; } figcaption { font-weight: 600; margin-bottom: .5rem; }
img { display: block; width: 100%; height: auto; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; }
th, td { border-bottom: 1px solid var(--faint); padding: .3rem .6rem; text-align: right; }
th { font-weight: 500; } th:first-child { text-align: left; padding-left: 0; }
summary { cursor: pointer; padding: .5rem 0; }
"""


PAGE_NAME = "index.html"


def require_drawing(folder: Path) -> None:
    """Checks whether a page can be written, before models run for minutes.

    Args:
        folder: of the plots; created if it is missing.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be made.
    """
    _plots()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made: {system_reason(error)}; name another with --plots."
        ) from error


def write_report(measured: Measured, evaluation: Evaluation, folder: Path) -> Path:
    """Draws every variant and writes the page.

    Args:
        measured: with an edge variant at least.
        evaluation: its figures.
        folder: of `VARIANT-PLOT.png` and the page; existing files are replaced.

    Returns:
        The page.

    Raises:
        ConfigError: there is no edge variant, matplotlib is not installed, or the folder cannot be written.
    """
    if not measured.edges:
        raise ConfigError(f"Bundle '{measured.manifest.name}' has no edge variant; there is nothing to draw.")
    require_drawing(folder)
    qualities = [quality_of(variant, evaluation) for variant in evaluation.variants]
    found = [report_data(measured, *each) for each in zip(measured.edges, qualities, strict=True)]
    sections = [(data, _drawn(data)) for data in found]
    title = f"{measured.manifest.name} version {measured.manifest.version}"
    labelled = "rows" if measured.truth is None else "labelled rows"
    about = f"Measured on {len(measured.sizes)} {labelled} of {measured.dataset.path.name}."
    try:
        for data, plots in sections:
            for plot in plots:
                (folder / f"{data.variant}-{plot.name}.png").write_bytes(plot.light)
        (folder / PAGE_NAME).write_text(html(title, about, sections), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The plots cannot be written to {folder}: {system_reason(error)}.") from error
    return folder / PAGE_NAME


def _plots() -> ModuleType:
    try:
        from firstline.workbench import plots
    except ImportError as error:
        raise ConfigError("Plots are drawn with matplotlib: pip install 'firstline[analysis]'.") from error
    return plots


def _drawn(data: ReportData) -> tuple[Plot, ...]:
    tiers = data.tiers
    return (
        *(_accuracy(data, tiers) if tiers is not None else ()),
        *([_risk(data, tiers)] if tiers is not None else []),
        *([_reliability(data.reliability)] if data.reliability is not None else []),
        *([_scores(data, tiers)] if tiers is not None else []),
    )


def _reliability(data: Reliability) -> Plot:
    plots = _plots()
    return Plot(
        "reliability",
        "Whether the edge model's probabilities mean what they say",
        f"Reliability diagram: the expected calibration error is {percent(data.error)} %.",
        plots.reliability(data, plots.LIGHT),
        plots.reliability(data, plots.DARK),
        reliability_table(data),
    )


def _accuracy(data: ReportData, tiers: Tiers) -> Iterator[Plot]:
    """Yields the plot of right answers; nothing without labels."""
    plots, words, edge, full, both = _plots(), Words.of(data), data.edge, tiers.full, tiers.accuracy
    if edge is None or full is None or both is None:
        return
    yield Plot(
        "accuracy",
        f"{words.right.capitalize()} by how many are escalated",
        f"From {percent(edge.value)} % with nothing escalated to {percent(full.value)} % with everything. This bundle "
        f"escalates {percent(tiers.escalated.value)} % and has {percent(both.value)} %, 95 % interval "
        f"{interval(both)} %.",
        plots.accuracy(data, tiers, words.right, plots.LIGHT),
        plots.accuracy(data, tiers, words.right, plots.DARK),
        curve_table(data, tiers),
    )


def _risk(data: ReportData, tiers: Tiers) -> Plot:
    plots, words = _plots(), Words.of(data)
    certificate = data.certificate if data.certificate and data.certificate.contract == "disagreement" else None
    epsilon, by = (certificate.epsilon, certificate.by) if certificate is not None else (None, "")
    return Plot(
        "risk",
        f"{words.lost.capitalize()}, by how many are escalated",
        f"{words.lost.capitalize()}: {percent(tiers.disagreement.value)} % for this bundle, 95 % interval "
        f"{interval(tiers.disagreement)} %; it escalates {percent(tiers.escalated.value)} %.",
        plots.risk(tiers, epsilon, by, words.lost, plots.LIGHT),
        plots.risk(tiers, epsilon, by, words.lost, plots.DARK),
        curve_table(data, tiers),
    )


def _scores(data: ReportData, tiers: Tiers) -> Plot:
    plots, words = _plots(), Words.of(data)
    return Plot(
        "scores",
        f"Scores of answers that {words.agree}, and of those that {words.disagree}",
        f"Two histograms of the score: {tiers.scores.agreeing.sum()} answers {words.agree}, "
        f"{tiers.scores.disagreeing.sum()} {words.disagree}. Answers are accepted from {data.threshold:.6g} on.",
        plots.scores(data, tiers, (words.agree, words.disagree), plots.LIGHT),
        plots.scores(data, tiers, (words.agree, words.disagree), plots.DARK),
        scores_table(data, tiers),
    )
