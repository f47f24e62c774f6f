"""`firstline compress`: smaller and faster variants, where measurement says that they are better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.compressed import as_json, print_found, print_order
from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption
from firstline.cli.named_profile import profile_named
from firstline.cli.output import Output, OutputOption, print_json, progress, warn
from firstline.cli.paths import BundleArgument, require_bundle
from firstline.cli.rollout_options import Where
from firstline.cli.work_folder import work_folder
from firstline.workbench.compress.compression import compress, promise_of, source_of
from firstline.workbench.compress.distilling import require_training
from firstline.workbench.compress.student import DEPTH, STARTED_RATE, Lesson, require_change, start_of
from firstline.workbench.compress.writing import Preference, next_version, write_compressed
from firstline.workbench.dataset import open_dataset
from firstline.workbench.placing import refuse_existing, require_writable
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import check_share
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
    confidence: Annotated[
        float | None,
        typer.Option(
            help="With which no greater loss has to be proved, e.g. 0.95. Default: what is seen on the judging images "
            "counts, and the most that it may be is told."
        ),
    ] = None,
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
        float | None,
        typer.Option(
            min=0.01, max=1, help="Share of the channels inside the blocks that a student keeps. Default: all."
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--student", metavar="ID", help="The student starts as this smaller model, and nothing is cut."),
    ] = "",
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --train: it is kept here after each epoch; ended, the same command goes on from there.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads a model and a training may use; 0 leaves it to the runtime.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the three parts of the data.")] = 0,
    prefer: Annotated[
        Preference,
        typer.Option(
            help="Which variant stands before which: a device takes the first that it can load. Energy needs --for."
        ),
    ] = Preference.KEPT,
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
        require_writable(out)
    source, promise = source_of(opened.manifest, of), promise_of(opened.manifest, epsilon, delta)
    for name, share in {"epsilon": promise.epsilon, "delta": promise.delta, "confidence": confidence}.items():
        if share is not None:
            check_share(name, share)
    start_of(opened.manifest, source, start)
    lesson = _lesson(train, depth, keep, start, threads)
    _ready(checkpoints, train)
    if prefer is Preference.ENERGY and not for_:
        raise ConfigError("--prefer energy orders by what is measured of energy, which --for PROFILE has done.")
    profile = profile_named(for_, opened.manifest.name, Where(gateway, key_file, ca)) if for_ else None
    dataset, options = open_dataset(data, limit), RuntimeOptions(threads=threads)
    with work_folder() as folder, progress("Compressing") as told:
        found = compress(
            opened,
            dataset,
            folder,
            source=source,
            promise=promise,
            max_loss=max_loss_points / 100,
            confidence=confidence,
            profile=profile,
            lesson=lesson,
            seed=seed,
            checkpoints=checkpoints,
            options=options,
            told=lambda words: typer.echo(f"{words} ...", err=True),
            progress=told,
        )
        taken = [
            one.model.id for one in found.candidates if one.model and one.verdict and (one.verdict.accepted or force)
        ]
        after = next_version(opened.manifest, found, taken, prefer) if taken else None
        written = None
        if after is not None and out is not None:
            written = write_compressed(opened, after, folder, out, options)
    if force and (refused := [one for one in found.candidates if one.verdict and not one.verdict.accepted]):
        warn(f"--force takes {len(refused)} that the rule refuses.")
    if output is Output.JSON:
        print_json(as_json(found, taken, after, written.manifest.version if written else None))
        return
    print_found(found)
    if after is not None:
        print_order(after.edge, taken, prefer)
    if written is not None:
        order = ", ".join(model.id for model in written.manifest.edge)
        typer.echo(
            f"{out}: {written.manifest.name} version {written.manifest.version}; edge variants in order: {order}."
        )
    else:
        typer.echo(f"No bundle was written{'; name one with --out' if taken else ': no candidate was taken'}.")


def _lesson(train: int | None, depth: float | None, keep: float | None, start: str, threads: int) -> Lesson | None:
    """How a student is taught; None where none is asked for.

    Raises:
        ConfigError: a student is described that nobody asked for, or would be a copy; or PyTorch is absent.
    """
    if train is None:
        described = {"--student": start, "--depth": depth, "--keep": keep}
        if option := next((name for name, value in described.items() if value), None):
            raise ConfigError(f"{option} says what a student is; --train says for how many epochs it is taught.")
        return None
    if train:
        require_training()
    share = 1.0 if keep is None else keep
    if depth is None:
        depth = 1.0 if start or share < 1 else DEPTH
    lesson = Lesson(share, depth, start, epochs=train, threads=threads)
    require_change(lesson)
    return replace(lesson, rate=STARTED_RATE) if start else lesson


def _ready(checkpoints: Path | None, train: int | None) -> None:
    """Raises ConfigError where nothing is trained, or the folder cannot be made: now, and not after minutes."""
    if checkpoints is None:
        return
    if not train:
        raise ConfigError("--checkpoints keeps a training; --train says for how many epochs a student is taught.")
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{checkpoints} cannot hold checkpoints: {error.strerror or error}.") from error
