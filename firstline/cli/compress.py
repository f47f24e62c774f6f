"""`firstline compress`: smaller and faster variants, where measurement says that they are better."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Annotated

import typer

from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption
from firstline.cli.named_profile import profile_named
from firstline.cli.output import Output, OutputOption, percent, print_json, print_table, progress, size, table, warn
from firstline.cli.paths import BundleArgument, require_bundle
from firstline.cli.rollout_options import Where
from firstline.workbench.compress.compression import Compression, compress, promise_of, source_of
from firstline.workbench.compress.distilling import require_training
from firstline.workbench.compress.judge import Figures
from firstline.workbench.compress.making import Candidate
from firstline.workbench.compress.student import DEPTH, STARTED_RATE, Lesson, start_of
from firstline.workbench.compress.target import Target
from firstline.workbench.compress.writing import write_compressed
from firstline.workbench.dataset import open_dataset
from firstline.workbench.placing import refuse_existing
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Modelled, Reading
from firstline_core.profile.words import DISTURBED
from firstline_core.routing.certificate import check_share
from firstline_core.runtime.select import RuntimeOptions


def compress_command(
    bundle: BundleArgument,
    *,
    data: Annotated[
        Path,
        typer.Option(
            help="Folder with labels.csv (columns file, label) and images/ or images.zip, of nobody's training."
        ),
    ],
    of: Annotated[
        str,
        typer.Option("--of", help="Model by id. Default: the first edge variant in fp32, else the full model."),
    ] = "",
    for_: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PROFILE",
            help="Of the machine that will run it: latency and energy are that one's. A file; or kept by the gateway: "
            "MACHINE (its latest of this bundle), BUNDLE/VERSION/MACHINE. Default: this machine.",
        ),
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Take this many images, spread evenly.")] = None,
    max_loss_points: Annotated[
        float, typer.Option(min=0, max=100, help="Points of accuracy that a candidate may lose.")
    ] = 2.0,
    epsilon: Annotated[
        float | None, typer.Option(help="Of the certificates. Default: the first variant's own, else 0.05.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Likewise.")] = None,
    train: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Also a student, taught for this many epochs (0: only fitted anew). Up to an hour; needs PyTorch.",
        ),
    ] = None,
    depth: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of residual blocks that a student keeps. Default: 0.4; all beside the next two.",
        ),
    ] = None,
    keep: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the channels inside the blocks that a student keeps.")
    ] = 1.0,
    start: Annotated[
        str,
        typer.Option("--student", metavar="ID", help="The student starts as this smaller model, and nothing is cut."),
    ] = "",
    threads: Annotated[
        int, typer.Option(min=0, help="Threads a model and a training may use; 0 leaves it to the runtime.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the three parts of the data.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where the next version goes, if a candidate is taken; none is written without.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Take refused candidates too.")] = False,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make variants by static and dynamic int8, fp16 and int8 weights, and keep those that are better.

    The data is parted: half makes the candidates, a fifth judges them, the rest certifies them. Latency is measured on
    this machine, in turns with what is there; with --for, in each model's best way there, and energy too; of another
    machine the profile's own points count, and nothing else. A candidate that is not better is refused, with the
    numbers; exits 0 all the same.
    """
    opened = open_bundle(require_bundle(bundle))
    if out is not None:
        refuse_existing(out)  # before the models run for minutes
    source, promise = source_of(opened.manifest, of), promise_of(opened.manifest, epsilon, delta)
    for name, share in {"epsilon": promise.epsilon, "delta": promise.delta}.items():
        check_share(name, share)
    if train:
        require_training()
    start_of(opened.manifest, source, start)
    if start and train is None:
        raise ConfigError("--student names what a student starts as; --train says for how many epochs it is taught.")
    if depth is None:
        depth = 1.0 if start or keep < 1 else DEPTH
    lesson = Lesson(keep, depth, start, epochs=train or 0, threads=threads)
    if start:
        lesson = replace(lesson, rate=STARTED_RATE)
    profile = profile_named(for_, opened.manifest.name, Where(gateway, key_file, ca)) if for_ else None
    dataset, options = open_dataset(data, limit), RuntimeOptions(threads=threads)
    with _work_folder() as folder, progress("Compressing") as told:
        found = compress(
            opened,
            dataset,
            folder,
            source=source,
            promise=promise,
            max_loss=max_loss_points / 100,
            profile=profile,
            lesson=lesson if train is not None else None,
            seed=seed,
            options=options,
            told=lambda words: typer.echo(f"{words} ...", err=True),
            progress=told,
        )
        taken = [
            one.model.id for one in found.candidates if one.model and one.verdict and (one.verdict.accepted or force)
        ]
        written = None
        if taken and out is not None:
            written = write_compressed(opened, found, folder, out, take=taken, options=options)
    if force and (refused := [one for one in found.candidates if one.verdict and not one.verdict.accepted]):
        warn(f"--force takes {len(refused)} that the rule refuses.")
    if output is Output.JSON:
        print_json(_json(found, taken, written.manifest.version if written else None))
        return
    _print(found)
    if written is not None:
        order = ", ".join(model.id for model in written.manifest.edge)
        typer.echo(
            f"{out}: {written.manifest.name} version {written.manifest.version}; edge variants in order: {order}."
        )
    else:
        typer.echo(f"No bundle was written{'; name one with --out' if taken else ': no candidate was taken'}.")


@contextmanager
def _work_folder() -> Iterator[Path]:
    """For all files on the way, candidates among them; what a killed command leaves there is known by its name."""
    try:
        with TemporaryDirectory(prefix="firstline-compress-") as folder:
            yield Path(folder)
    except OSError as error:
        raise ConfigError(
            f"Nothing was written: the work in {gettempdir()} failed: {error.strerror or error}; TMPDIR names another "
            "place for it."
        ) from error


def _json(found: Compression, taken: list[str], version: int | None) -> dict[str, object]:
    return {
        "source": found.source.id,
        "target": found.target,
        "waited_share": found.waited_share,
        "promise": found.promise,
        "max_loss": found.max_loss,
        "rows": dict(zip(("make", "judge", "certify"), found.rows, strict=True)),
        "there": found.there,
        "certified_accuracy": found.certified_accuracy,
        "candidates": [
            {
                "id": one.model.id if one.model is not None else None,
                "technique": one.technique,
                "figures": one.figures,
                "accepted": one.verdict is not None and one.verdict.accepted,
                "reasons": one.verdict.reasons if one.verdict is not None else (one.failed,),
                "provenance": one.model.provenance if one.model is not None else None,
            }
            for one in found.candidates
        ],
        "taken": taken,
        "version": version,
    }


def _print(found: Compression) -> None:
    make, judge, certify = found.rows
    promise = found.promise
    typer.echo(
        f"Made of {found.source.id} on {make} images, judged on {judge}, certified on {certify}: at most "
        f"{percent(promise.epsilon)} {promise.contract}, with confidence {percent(1 - promise.delta)}."
    )
    aimed = found.target is not None
    made = table(
        "model", ">accuracy", ">on new rows", ">p50 ms", *((">mJ", "on") if aimed else ()), ">bytes", ">kept", "verdict"
    )
    for there in found.there:
        made.add_row(*_row(there, found), "there")
    for one in found.candidates:
        made.add_row(*_row(one.figures, found), _verdict(one)) if one.figures else None
    print_table(made)
    if found.target is not None:
        typer.echo(_of_target(found, found.target))
    for one in found.candidates:
        name = one.model.id if one.model is not None else one.technique
        reasons = one.verdict.reasons if one.verdict is not None else (one.failed,)
        typer.echo(f"{name} is {_verdict(one)}: {'; '.join(reasons) or 'nothing that is there is as accurate'}.")


def _verdict(one: Candidate) -> str:
    if one.verdict is None:
        return "not made" if one.model is None else "not judged"
    return "accepted" if one.verdict.accepted else "refused"


def _row(figures: Figures, found: Compression) -> tuple[str, ...]:
    kept = "-" if figures.kept is None else percent(figures.kept)
    on_target = (_energy(figures.energy_mj), figures.ran) if found.target is not None else ()
    accuracies = percent(figures.accuracy), percent(found.certified_accuracy[figures.id])
    return figures.id, *accuracies, f"{figures.latency_ms:.4g}", *on_target, size(figures.size_bytes), kept


def _energy(reading: Reading | None) -> str:
    if reading is None or isinstance(reading, Absent):
        return "absent"
    return f"{reading.value:.3g}{' (modelled)' if isinstance(reading, Modelled) else ''}"


def _of_target(found: Compression, target: Target) -> str:
    """Whence latency and energy come."""
    said = [
        f"Latency is of '{target.machine}', "
        + ("measured now, in turns, each model in its best way." if target.here else "as its profile has it.")
    ]
    energy = found.there[0].energy_mj
    if isinstance(energy, Absent):
        said.append(f"Energy is absent: {energy.reason}")
    elif energy is not None:
        said.append(f"Energy is {type(energy).__name__.lower()}: {energy.source}.")
    if found.waited_share > DISTURBED:
        said.append(f"Other work had the core for up to {percent(round(found.waited_share, 2))} of a measurement.")
    return " ".join(said)
