"""`firstline evaluate`: measures a bundle on data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import DATA_HELP, BundleArgument, DataReading, LimitOption, ThreadsOption, require_bundle
from firstline.cli.output import progress, table
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table

    from firstline.workbench.evaluate import Evaluation, EventFigures, Latency, figures, measure
    from firstline.workbench.report import require_drawing, write_report
    from firstline_core.bundle.store import open_bundle
    from firstline_core.runtime.select import RuntimeOptions
    from firstline_core.tasks.classification import Classification

app = command_group()

_EVENTS_SHOWN = 12


@command(app, "evaluate", example="firstline evaluate digits --data digits/test")
def evaluate_bundle(
    bundle: BundleArgument,
    *,
    data: Annotated[Path, typer.Option(help=DATA_HELP)],
    reading: DataReading,
    limit: LimitOption = None,
    edge: list[str] | None = None,
    threads: ThreadsOption = 1,
    plots: Path | None = None,
) -> Report:
    """Measure edge-only, full-only and tiered: quality, share at the edge, bytes, latency, missed and invented objects.

    Every row goes through the models one by one, as requests do. Without labels, the answers of both models are
    compared. The tiered answers are routed by the bundle's own
    policy. Latency is that of the models on this machine, decoding and processing included and the network excluded.

    Args:
        edge: Edge variant by id, or 'all'; may be repeated. Default: the first that loads.
        plots: Folder for plots (PNG) and one page with all of them (index.html); needs matplotlib.
    """
    opened = open_bundle(require_bundle(bundle))
    dataset = reading.open(data, opened.manifest.inputs, limit)
    if plots is not None:
        require_drawing(plots)  # before the models run for minutes
    with progress("Evaluating") as bar:
        measured = measure(opened, dataset, variants=edge or (), options=RuntimeOptions(threads=threads), progress=bar)
    evaluation = figures(measured)
    drawn = write_report(measured, evaluation, plots) if plots is not None else None
    return Report(evaluation, _text(evaluation, drawn))


def _text(evaluation: Evaluation, drawn: Path | None) -> Iterator[str | Table]:
    score = evaluation.policy.score
    yield (
        f"{evaluation.bundle} version {evaluation.version} on {counted(evaluation.samples, 'row')} of "
        f"{evaluation.data}. Edge answers are accepted when {score.kind} (temperature {score.temperature:g}) is at "
        f"least {_thresholds(evaluation)}."
    )
    names = _names(evaluation)
    columns = ("", "model", *(f">{name}" for name in names), ">at the edge", ">disagree", ">KB sent")
    yield table(*columns, ">p50 ms", ">p99 ms", rows=_rows(evaluation, names))
    if not names:
        yield "The data has no labels, so that no quality is measured."
    for variant in evaluation.variants:
        if variant.tiered is not None:
            area = "n/a" if variant.tiered.auroc is None else f"{variant.tiered.auroc:.3f}"
            yield f'{variant.edge.id}: AUROC {area} of the score for "edge disagrees with full".'
            if evaluation.task != Classification.kind:  # a classifier's events are its disagreements
                yield from _events(variant.edge.id, variant.tiered.events)
    loss = (
        "share of the answers accepted at the edge with another label than the full model's"
        if evaluation.task == Classification.kind
        else "mean loss of the answers accepted at the edge against the full model's; with grades between 0 and 1, an "
        "answer disagrees for the AUROC if its loss is above the mean"
    )
    yield f"disagree: {loss}. KB sent: of inputs. ms: of one row through the models here, without the network."
    if drawn is not None:
        yield f"Drawn: {drawn}"


def _names(evaluation: Evaluation) -> list[str]:
    """Returns the names of the task's figures; [] without labels."""
    models = [evaluation.full, *(variant.edge for variant in evaluation.variants)]
    return list(dict.fromkeys(name for model in models if model is not None for name in model.quality))


def _rows(evaluation: Evaluation, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    def quality(figures: Mapping[str, float]) -> Iterator[str]:
        return (f"{figures[name]:.4g}" if name in figures else "-" for name in names)

    for variant in evaluation.variants:
        edge, both = variant.edge, variant.tiered
        yield "edge only", edge.id, *quality(edge.quality), _percent(1), "", "0.0", *_ms(edge.latency_ms)
        if both is not None:
            yield (
                "tiered",
                edge.id,
                *quality(both.quality),
                _percent(both.edge_share),
                "-" if both.disagreement is None else _percent(both.disagreement),
                f"{both.bytes_sent / 1000:.1f}",
                *_ms(both.latency_ms),
            )
    if (full := evaluation.full) is not None:
        bytes_all = next((v.tiered.bytes_all for v in evaluation.variants if v.tiered is not None), None)
        sent = "" if bytes_all is None else f"{bytes_all / 1000:.1f}"
        yield "full only", full.id, *quality(full.quality), _percent(0), "", sent, *_ms(full.latency_ms)


def _events(variant: str, events: Mapping[str, EventFigures]) -> Iterator[str | Table]:
    """Yields the most frequent events among the accepted answers."""
    by_rows = sorted(events.items(), key=lambda event: -event[1].rows)
    if not by_rows:
        return
    rows = (
        (name, str(event.occurred), str(event.rows), _percent(event.occurred / event.rows))
        for name, event in by_rows[:_EVENTS_SHOWN]
    )
    yield table(f"accepted by {variant}", ">occurred", ">of rows in which it could", ">share", rows=rows)
    if len(by_rows) > _EVENTS_SHOWN:
        yield f"{len(by_rows) - _EVENTS_SHOWN} more events could occur in fewer rows; -o json has them all."


def _thresholds(evaluation: Evaluation) -> str:
    """Returns the policy's threshold, or each variant's if certificates have others."""
    lowest = {variant.edge.id: f", the lowest by {variant.by}" if variant.by else "" for variant in evaluation.variants}
    shared = {variant.threshold for variant in evaluation.variants} or {evaluation.policy.threshold}
    if len(shared) == 1 and not any(lowest.values()):
        return f"{shared.pop():g}"
    return ", ".join(f"{each.threshold:g} ({each.edge.id}{lowest[each.edge.id]})" for each in evaluation.variants)


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")


def _ms(latency: Latency) -> tuple[str, str]:
    return f"{latency.p50:.2f}", f"{latency.p99:.2f}"
