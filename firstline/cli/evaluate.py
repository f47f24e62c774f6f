"""`firstline evaluate`: measures a bundle on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.output import Output, OutputOption, print_json, print_table, progress, table
from firstline.cli.paths import BundleArgument, require_bundle
from firstline.workbench.dataset import open_dataset
from firstline.workbench.evaluate import Evaluation, Latency, figures
from firstline.workbench.measure import measure
from firstline.workbench.report import require_drawing, write_report
from firstline_core.bundle.store import open_bundle
from firstline_core.runtime.select import RuntimeOptions


def evaluate_bundle(
    bundle: BundleArgument,
    *,
    data: Annotated[Path, typer.Option(help="Folder with labels.csv (columns file, label) and images/ or images.zip.")],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use this many images, spread evenly over labels.csv.")
    ] = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(help="Edge variant by id, or 'all'; may be repeated. Default: the first that loads."),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads for each model; 0 uses the runtime's default.")] = 1,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for plots (PNG) and one page with all of them (index.html); needs matplotlib."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure edge-only, full-only and tiered: accuracy, share at the edge, bytes, latency.

    Every image goes through the models one by one, as requests do. The tiered answers are routed by the bundle's own
    policy. Latency is that of the models on this machine, decoding and processing included and the network excluded.
    """
    opened = open_bundle(require_bundle(bundle))
    dataset = open_dataset(data, limit)
    if plots is not None:
        require_drawing(plots)  # before the models run for minutes
    with progress("Evaluating") as bar:
        measured = measure(opened, dataset, variants=edge or (), options=RuntimeOptions(threads=threads), progress=bar)
    found = figures(measured)
    drawn = write_report(measured, plots) if plots is not None else None
    if output is Output.JSON:
        print_json(found)
        return
    _print_text(found)
    if drawn is not None:
        typer.echo(f"Drawn: {drawn}")


def _print_text(found: Evaluation) -> None:
    score = found.policy.score
    typer.echo(
        f"{found.bundle} version {found.version} on {found.samples} images of {found.data}. Edge answers are kept when "
        f"{score.kind} (temperature {score.temperature:g}) is at least {_thresholds(found)}."
    )
    made = table("", "model", ">accuracy", ">at the edge", ">disagree", ">KB sent", ">p50 ms", ">p99 ms")
    for variant in found.variants:
        figures = variant.edge
        made.add_row(
            "edge only", figures.id, _percent(figures.accuracy), _percent(1), "", "0.0", *_ms(figures.latency_ms)
        )
        if (both := variant.tiered) is not None:
            made.add_row(
                "tiered",
                figures.id,
                _percent(both.accuracy),
                _percent(both.edge_share),
                "-" if both.disagreement is None else _percent(both.disagreement),
                f"{both.bytes_sent / 1000:.1f}",
                *_ms(both.latency_ms),
            )
    if found.full is not None:
        sent = next((v.tiered.bytes_all for v in found.variants if v.tiered is not None), None)
        made.add_row(
            "full only",
            found.full.id,
            _percent(found.full.accuracy),
            _percent(0),
            "",
            "" if sent is None else f"{sent / 1000:.1f}",
            *_ms(found.full.latency_ms),
        )
    print_table(made)
    for variant in found.variants:
        if (both := variant.tiered) is not None:
            area = "n/a" if both.auroc is None else f"{both.auroc:.3f}"
            typer.echo(f'{variant.edge.id}: AUROC {area} of the score for "edge disagrees with full".')
    typer.echo(
        "disagree: of the answers kept at the edge, those for which the full model says another label. KB sent: of "
        "encoded images. ms: of one image through the models on this machine, without the network."
    )


def _thresholds(found: Evaluation) -> str:
    """Returns the policy's threshold, or each variant's if certificates have others."""
    each = {variant.edge.id: variant.threshold for variant in found.variants}
    if len(set(each.values())) == 1 and not any(variant.by for variant in found.variants):
        return f"{next(iter(each.values())):g}"
    by = {variant.edge.id: f", the lowest by {variant.by}" if variant.by else "" for variant in found.variants}
    return ", ".join(f"{value:g} ({name}{by[name]})" for name, value in each.items()) or f"{found.policy.threshold:g}"


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")


def _ms(latency: Latency) -> tuple[str, str]:
    return f"{latency.p50:.2f}", f"{latency.p99:.2f}"
