"""Writes the measurements of a bundle as plots and one HTML page: PNG files and `index.html` in a folder.

The page needs no other file, and suits phones, light and dark themes.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from PIL import Image

from firstline.workbench.evaluate import Evaluation, Measured
from firstline.workbench.report_data import Disagreement, ReportData, disagreements, quality_of, report_data
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import points
from firstline_core.storage.files import naming

if TYPE_CHECKING:
    from firstline.workbench.plots import Plot

PAGE_NAME = "index.html"
_PICTURES = 6


def require_drawing(folder: Path) -> None:
    """Checks whether a page can be written, before models run for minutes.

    Args:
        folder: of the plots; created if it is missing.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be made.
    """
    _plots()
    with naming(f"The folder of plots {folder}", "written"):
        folder.mkdir(parents=True, exist_ok=True)


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
    title = f"{measured.manifest.name} version {measured.manifest.version}"
    labelled = "rows" if measured.truth is None else "labelled rows"
    sections = []
    with naming(f"The folder of plots {folder}", "written"):
        for edge, variant in zip(measured.edges, evaluation.variants, strict=True):
            data = report_data(measured, edge, quality_of(variant, evaluation))
            plots = list(_plots().drawn(data))
            for plot in plots:
                (folder / f"{data.variant}-{plot.name}.png").write_bytes(plot.png)
            pictures = takewhile(lambda found: found.accepted, disagreements(measured, edge, _PICTURES))
            sections.append(section(data, plots, list(pictures)))
        about = f"Measured on {len(measured.sizes)} {labelled} of {measured.dataset.path.name}."
        (folder / PAGE_NAME).write_text(html(title, about, sections), encoding="utf-8")
    return folder / PAGE_NAME


def _plots() -> ModuleType:
    try:
        from firstline.workbench import plots
    except ImportError as error:
        raise ConfigError("Plots are drawn with matplotlib: pip install 'firstline[analysis]'.") from error
    return plots


def html(title: str, about: str, sections: Sequence[str]) -> str:
    """Returns the page.

    Args:
        title: the bundle.
        about: a sentence about the measurement and its data.
        sections: HTML of each variant.
    """
    body = "\n".join(sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
body {{ max-width: 46rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
h1, h2 {{ line-height: 1.25; overflow-wrap: anywhere; }}
img {{ max-width: 100%; height: auto; }}
.table {{ overflow-x: auto; }} table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .6rem; text-align: right; }} caption, th:first-child {{ text-align: left; }}
</style>
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


def section(data: ReportData, plots: Sequence[Plot], pictures: Sequence[Disagreement]) -> str:
    """Returns the part of the page about one variant."""
    quality = [(name, *map(_number, values)) for name, values in data.quality.items()]
    parts = [
        f"<h2>{escape(data.variant)}</h2>",
        f"<p>{escape(certificate_sentence(data))}</p>",
        _table("What this data shows", ("", "%", "95 % interval", "rows"), figures(data)),
    ]
    if quality:
        parts.append(_table("Quality against the labels", ("", "edge model", "both tiers", "full model"), quality))
    if data.curve is not None:
        area = "n/a" if data.auroc is None else f"{data.auroc:.3f}"
        auroc = f'AUROC of the score for "edge disagrees with full": {area}.'
        parts.append(f"<p>{escape(auroc)}</p>")
    parts += [_figure(plot.title, plot.alt, "png", plot.png) for plot in plots]
    if pictures:
        parts.append("<h3>Accepted answers of the edge model that differ most from the full model's</h3>")
    for picture in pictures:
        for model, image in (("edge", picture.edge), ("full", picture.full)):
            alt = f"{picture.name} with the answer of the {model} model"
            parts.append(_figure(f"{picture.name}: {model} model", alt, "jpeg", _jpeg(image)))
    return "\n".join(["<section>", *parts, "</section>"])


def figures(data: ReportData) -> list[tuple[str, str, str, str]]:
    """Returns the variant's figures with their intervals, as text."""
    shares = {
        f"{data.right}, edge model alone": data.edge,
        f"{data.right}, both tiers": data.tiered,
        f"{data.right}, full model alone": data.full,
        "escalated to the full model": data.escalated,
        data.differing: data.disagreement,
    }
    return [
        (
            name,
            _percent(share.value),
            f"{_percent(share.low)} to {_percent(share.high)}",
            f"{share.hits:g} of {share.rows}",
        )
        for name, share in shares.items()
        if share is not None
    ]


def certificate_sentence(data: ReportData) -> str:
    """Returns the promise of this variant, or the reason why it has none."""
    certificate = data.certificate
    if certificate is None:
        return (
            f"Not certified: {data.uncertified}. Answers are accepted from a score of {data.threshold:.6g} on, and say "
            "that they are not certified."
        )
    risk = f"risk was {_percent(certificate.risk_upper)} %"
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
        f"{_percent(certificate.kept)} % of them, and the upper bound of the {risk}."
    )


def _percent(value: float) -> str:
    """Returns a percentage without its sign; "-" for an unknown value."""
    return "-" if math.isnan(value) else f"{100 * value:.2f}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _figure(caption: str, alt: str, kind: str, content: bytes) -> str:
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return f'<figure>\n<figcaption>{escape(caption)}</figcaption>\n<img src="{source}" alt="{escape(alt)}">\n</figure>'


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of numbers as text; the first column names the row."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for name, *cells in rows
    )
    return f"""<div class="table" role="region" tabindex="0" aria-label="{escape(caption)}"><table>
<caption>{escape(caption)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>"""
