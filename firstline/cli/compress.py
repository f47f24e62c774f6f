"""`firstline compress`: makes smaller and faster variants, and keeps those that measurement shows to be better."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.compress_output import as_json, print_found, print_order
from firstline.cli.options import BundleArgument, GatewayOptions, require_bundle
from firstline.cli.output import Output, OutputOption, print_json, progress, warn
from firstline.cli.profile_source import load_profile
from firstline.cli.work_folder import work_folder
from firstline.workbench.bundle import refuse_existing, require_writable
from firstline.workbench.compress.compression import Compression, Rule, compress, promise_of, source_of
from firstline.workbench.compress.next_version import Preference, next_version, write_compressed
from firstline.workbench.compress.student import Lesson, require_training, start_of
from firstline.workbench.dataset import open_dataset
from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import check_share
from firstline_core.runtime.select import RuntimeOptions

DataOption = Annotated[
    Path,
    typer.Option(
        help="Folder with labels.csv (columns file, label) and images/ or images.zip that no model was trained on."
    ),
]
OfOption = Annotated[
    str, typer.Option("--of", help="Model by id. Default: the first edge variant in fp32, else the full model.")
]
ForOption = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="PROFILE",
        help="Profile of the target machine, for latency and energy: a file; or stored by the gateway: MACHINE (its "
        "latest of this bundle), BUNDLE/VERSION/MACHINE. Default: this machine.",
    ),
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Take this many images, spread evenly.")]
MaxLossOption = Annotated[float, typer.Option(min=0, max=100, help="Points of accuracy that a candidate may lose.")]
ConfidenceOption = Annotated[
    float | None,
    typer.Option(
        help="Require a proof with this confidence that no more is lost, e.g. 0.95. Default: the loss on the judging "
        "images decides, and its upper bound is shown."
    ),
]
EpsilonOption = Annotated[
    float | None, typer.Option(help="Of the certificates. Default: the first variant's own, else 0.05.")
]
DeltaOption = Annotated[
    float | None, typer.Option(help="Of the certificates. Default: the first variant's own, else 0.05.")
]
TrainOption = Annotated[
    int | None,
    typer.Option(min=1, help="With --student: train it for this many epochs. Up to an hour; needs PyTorch."),
]
StudentOption = Annotated[
    str,
    typer.Option(
        "--student", metavar="ID", help="Also train this smaller model of the bundle on the source's answers."
    ),
]
CheckpointsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --train: save the training here after each epoch; the same command resumes it.",
    ),
]
ThreadsOption = Annotated[
    int, typer.Option(min=0, help="Threads a model and a training may use; 0 leaves it to the runtime.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the three parts of the data.")]
PreferOption = Annotated[
    Preference,
    typer.Option(
        help="Order of the variants: a device takes the first that it can load. Energy needs --for.",
    ),
]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder of the next version, if a candidate is taken; without it none is written.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Take refused candidates too.")]


def compress_command(
    bundle: BundleArgument,
    *,
    data: DataOption,
    of: OfOption = "",
    for_: ForOption = "",
    limit: LimitOption = None,
    max_loss_points: MaxLossOption = 2.0,
    confidence: ConfidenceOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    train: TrainOption = None,
    start: StudentOption = "",
    checkpoints: CheckpointsOption = None,
    threads: ThreadsOption = 1,
    seed: SeedOption = 0,
    prefer: PreferOption = Preference.KEPT,
    out: OutOption = None,
    force: ForceOption = False,
    gateway: GatewayOptions,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make variants by static and dynamic int8, fp16 and int8 weights, and keep those that are better.

    Half of the data makes the candidates, a fifth judges them, the rest certifies them. Latency is measured on this
    machine, in turns with the existing models; with --for, in each model's fastest way there, and energy too. For
    another machine only the points of its profile count. A candidate that is not better is refused, with the numbers;
    the exit code is 0 all the same.
    """
    opened = open_bundle(require_bundle(bundle))
    if out is not None:
        refuse_existing(out)  # before the models run for minutes
        require_writable(out)
    source, promise = source_of(opened.manifest, of), promise_of(opened.manifest, epsilon, delta)
    for name, share in {"epsilon": promise.epsilon, "delta": promise.delta, "confidence": confidence}.items():
        if share is not None:
            check_share(name, share)
    lesson = _lesson(train, start, threads)
    if lesson is not None:
        start_of(opened.manifest, source, start)
        require_training()
    _prepare_checkpoints(checkpoints, train)
    if prefer is Preference.ENERGY and not for_:
        raise ConfigError("--prefer energy orders by measured energy, which needs --for PROFILE.")
    profile = load_profile(for_, opened.manifest.name, gateway) if for_ else None
    dataset, options = open_dataset(data, limit), RuntimeOptions(threads=threads)
    with work_folder() as folder, progress("Compressing") as on_progress:
        found = compress(
            opened,
            dataset,
            folder,
            source=source,
            rule=Rule(promise, max_loss_points / 100, confidence),
            profile=profile,
            lesson=lesson,
            seed=seed,
            checkpoints=checkpoints,
            options=options,
            report=lambda step: typer.echo(f"{step} ...", err=True),
            progress=on_progress,
        )
        taken = [
            one.model.id for one in found.candidates if one.model and one.verdict and (one.verdict.accepted or force)
        ]
        after = next_version(opened.manifest, found, taken, prefer) if taken else None
        written = write_compressed(opened, after, folder, out, options) if after and out else None
    _print(found, taken, after, written, force=force, prefer=prefer, output=output)


def _print(
    found: Compression,
    taken: list[str],
    after: Manifest | None,
    written: Bundle | None,
    *,
    force: bool,
    prefer: Preference,
    output: Output,
) -> None:
    if force and (refused := [one for one in found.candidates if one.verdict and not one.verdict.accepted]):
        warn(f"--force takes {len(refused)} that the rule refuses.")
    if output is Output.JSON:
        print_json(as_json(found, taken, after, written.manifest.version if written else None))
        return
    print_found(found)
    if after is not None:
        print_order(after.edge, taken, prefer)
    if written is not None:
        order, manifest = ", ".join(model.id for model in written.manifest.edge), written.manifest
        typer.echo(f"{written.path}: {manifest.name} version {manifest.version}; edge variants in order: {order}.")
    else:
        typer.echo(f"No bundle was written{'; name one with --out' if taken else ': no candidate was taken'}.")


def _lesson(train: int | None, start: str, threads: int) -> Lesson | None:
    """Returns how a student is trained; None for no student.

    Raises:
        ConfigError: one of both options is missing.
    """
    if start and not train:
        raise ConfigError(f"--student {start} names a student; --train says for how many epochs it is trained.")
    if train and not start:
        raise ConfigError("--train trains a student; --student names the model of the bundle that it starts as.")
    return Lesson(start, train, threads) if train else None


def _prepare_checkpoints(checkpoints: Path | None, train: int | None) -> None:
    """Raises ConfigError if nothing is trained or the folder cannot be made, before models run for minutes."""
    if checkpoints is None:
        return
    if not train:
        raise ConfigError("--checkpoints saves a training; --train says for how many epochs a student is trained.")
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{checkpoints} cannot hold checkpoints: {error.strerror or error}.") from error
