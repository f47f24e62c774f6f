"""`firstline profile split`: measures the cost of cutting a bundle's full model in two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report
from firstline.cli.options import DATA_HELP, BundleArgument, DataReading, LimitOption, ThreadsOption, require_bundle
from firstline.cli.output import progress, size, table
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import rounded

if TYPE_CHECKING:
    from rich.table import Table

    from firstline.workbench.bundle import staged_folder
    from firstline.workbench.splitting.measure import cut_files, measure_splits
    from firstline_core.bundle.store import Bundle, open_bundle
    from firstline_core.planning.plan import describe_bandwidths, describe_way
    from firstline_core.planning.split import DOCUMENT, SplitEnvironment, Splits, encode, stretches, ways
    from firstline_core.runtime.select import RuntimeOptions


def split_command(
    bundle: BundleArgument,
    *,
    data: Annotated[Path, typer.Option(help=DATA_HELP)],
    at: str = "auto",
    reading: DataReading,
    limit: LimitOption = 200,
    threads: ThreadsOption = 1,
    round_trip: Annotated[float, typer.Option(min=0, metavar="MS")] = 20.0,
    device_slowdown: Annotated[float, typer.Option(min=0.001)] = 1.0,
    gateway_slowdown: Annotated[float, typer.Option(min=0.001)] = 1.0,
    most_disagreement: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    out: Path | None = None,
) -> Report:
    """Cut the full model in two and measure head, checkpoint and tail, and the bandwidths at which a cut is faster.

    The head would run on the device, the checkpoint (the one tensor that crosses the cut, quantised and compressed) be
    sent, and the tail answer in the cloud. Times are this machine's. Cuts are compared with the whole model on the
    device, and with sending the encoded image. Firstline measures splits and plans with them; it does not run them.

    Args:
        at: Tensor to cut at, or 'auto': those narrower than all before them.
        round_trip: Round trip time of the link.
        device_slowdown: Time on the device over time on this machine.
        gateway_slowdown: Time on the gateway over time on this machine.
        most_disagreement: Largest disagreement that a checkpoint may cause.
        out: New folder for split.json, and for the halves at each cut.
    """
    opened = open_bundle(require_bundle(bundle))
    dataset = reading.open(data, opened.manifest.inputs, limit)
    if out is not None and (out.exists() or out.is_symlink()):
        raise ConfigError(f"{out} exists; name a new folder with --out.")
    options = RuntimeOptions(threads=threads)
    with progress("Splitting") as on_progress:
        found = measure_splits(opened, dataset, at=at, options=options, progress=on_progress)
    if out is not None:
        _write(found, opened, out)
    around = SplitEnvironment(round_trip, device_slowdown, gateway_slowdown, most_disagreement)
    return Report(found, [*_text(found, around), *([f"Written: {out}"] if out is not None else [])])


def _write(found: Splits, bundle: Bundle, out: Path) -> None:
    with staged_folder(out) as staged:
        (staged / DOCUMENT).write_bytes(encode(found))
        for number, cut in enumerate(found.cuts):
            for half, content in zip(("head", "tail"), cut_files(bundle, cut.tensor), strict=True):
                (staged / f"{half}-{number}.onnx").write_bytes(content)


def _text(found: Splits, around: SplitEnvironment) -> Iterator[str | Table]:
    yield (
        f"{found.bundle} version {found.version}, full model '{found.model}' ({found.runtime}, threads: "
        f"{found.threads}) on {found.rows} images: {rounded(found.prepare_ms)} ms to prepare one, "
        f"{rounded(found.model_ms)} ms to run the model, {size(round(found.input_bytes))} an image. One tensor alone "
        f"crosses at {found.points} places; measured: {len(found.cuts)}."
    )
    columns = ("cut at", "shape", ">head ms", ">tail ms", "form", ">sent", ">pack ms", ">disagree", ">accuracy lost")
    rows = []
    for cut in found.cuts:
        place = (cut.tensor, "x".join(map(str, cut.shape)), f"{cut.head_ms:.3f}", f"{cut.tail_ms:.3f}")
        for form in cut.forms:
            times, lost = f"{form.pack_ms + form.unpack_ms:.3f}", form.accuracy_loss
            shares = (f"{100 * form.disagreement:.2f} %", "-" if lost is None else f"{100 * lost:.2f} %")
            first = place if form is cut.forms[0] else ("",) * len(place)
            rows.append((*first, form.name, size(round(form.sent_bytes)), times, *shares))
    yield table(*columns, rows=rows)
    yield (
        f"With {around.round_trip_ms:g} ms there and back, a device {around.device_slowdown:g} and a gateway "
        f"{around.gateway_slowdown:g} times as slow as this machine, and at most {100 * around.most_disagreement:g} % "
        "disagreement by a checkpoint:"
    )
    for stretch in stretches(ways(found, around)):
        yield f"  {describe_bandwidths(stretch)}: {describe_way(stretch.way)}"
