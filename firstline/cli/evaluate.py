"""`firstline evaluate`: measures a bundle on labelled images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from firstline.cli.command import Report
from firstline.cli.options import BundleArgument, LimitOption, ThreadsOption, open_classifiers
from firstline.cli.output import progress, table
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import Evaluation, Latency, figures, measure
from firstline.workbench.report import require_drawing, write_report
from firstline_core.runtime.select import RuntimeOptions


def evaluate_bundle(
    bundle: BundleArgument,
    *,
    data: Annotated[Path, typer.Option(help="Folder with labels.csv (columns file, label) and images/ or images.zip.")],
    limit: LimitOption = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(help="Edge variant by id, or 'all'; may be repeated. Default: the first that loads."),
    ] = None,
    threads: ThreadsOption = 1,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for plots (PNG) and one page with all of them (index.html); needs matplotlib."),
    ] = None,
) -> Report:
    """Measure edge-only, full-only and tiered: accuracy, share at the edge, bytes, latency.

    Every image goes through the models one by one, as requests do. The tiered answers are routed by the bundle's own
    policy. Latency is that of the models on this machine, decoding and processing included and the network excluded.
    """
    opened = open_classifiers(bundle)
    dataset = open_dataset(data, limit)
    if plots is not None:
        require_drawing(plots)  # before the models run for minutes
    with progress("Evaluating") as bar:
        measured = measure(opened, dataset, variants=edge or (), options=RuntimeOptions(threads=threads), progress=bar)
    evaluation = figures(measured)
    drawn = write_report(measured, plots) if plots is not None else None
    return Report(evaluation, _text(evaluation, drawn))


def _text(evaluation: Evaluation, drawn: Path | None) -> Iterator[str | Table]:
    score = evaluation.policy.score
    yield (
        f"{evaluation.bundle} version {evaluation.version} on {evaluation.samples} images of {evaluation.data}. Edge "
        f"answers are accepted when {score.kind} (temperature {score.temperature:g}) is at least "
        f"{_thresholds(evaluation)}."
    )
    columns = ("", "model", ">accuracy", ">at the edge", ">disagree", ">KB sent", ">p50 ms", ">p99 ms")
    yield table(*columns, rows=_rows(evaluation))
    for variant in evaluation.variants:
        if variant.tiered is not None:
            area = "n/a" if variant.tiered.auroc is None else f"{variant.tiered.auroc:.3f}"
            yield f'{variant.edge.id}: AUROC {area} of the score for "edge disagrees with full".'
    yield (
        "disagree: of the answers accepted at the edge, those for which the full model says another label. KB sent: of "
        "encoded images. ms: of one image through the models on this machine, without the network."
    )
    if drawn is not None:
        yield f"Drawn: {drawn}"


def _rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    for variant in evaluation.variants:
        edge, both = variant.edge, variant.tiered
        yield "edge only", edge.id, _percent(edge.accuracy), _percent(1), "", "0.0", *_ms(edge.latency_ms)
        if both is not None:
            yield (
                "tiered",
                edge.id,
                _percent(both.accuracy),
                _percent(both.edge_share),
                "-" if both.disagreement is None else _percent(both.disagreement),
                f"{both.bytes_sent / 1000:.1f}",
                *_ms(both.latency_ms),
            )
    if (full := evaluation.full) is not None:
        bytes_all = next((v.tiered.bytes_all for v in evaluation.variants if v.tiered is not None), None)
        sent = "" if bytes_all is None else f"{bytes_all / 1000:.1f}"
        yield "full only", full.id, _percent(full.accuracy), _percent(0), "", sent, *_ms(full.latency_ms)


def _thresholds(evaluation: Evaluation) -> str:
    """Returns the policy's threshold, or each variant's if certificates have others."""
    each = {variant.edge.id: variant.threshold for variant in evaluation.variants}
    if len(set(each.values())) == 1 and not any(variant.by for variant in evaluation.variants):
        return f"{next(iter(each.values())):g}"
    by = {variant.edge.id: f", the lowest by {variant.by}" if variant.by else "" for variant in evaluation.variants}
    return (
        ", ".join(f"{value:g} ({name}{by[name]})" for name, value in each.items()) or f"{evaluation.policy.threshold:g}"
    )


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")


def _ms(latency: Latency) -> tuple[str, str]:
    return f"{latency.p50:.2f}", f"{latency.p99:.2f}"
