"""`firstline profile`: measures the cost of a bundle's models on this machine or on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from firstline.cli.device_profiling import bundle_named, cancel_on, profile_on
from firstline.cli.options import GatewayOptions, require_bundle
from firstline.cli.output import Output, OutputOption, progress
from firstline.cli.picture import BesideOption, DrawOption, Picture, picture_of, print_profile
from firstline.workbench.dataset import open_dataset
from firstline.workbench.observe import accuracies_on
from firstline.workbench.pareto import check_accuracy
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.fleet.profiles import NewProfileRequest
from firstline_core.profile.files import profile_path
from firstline_core.profile.measure import (
    QUICK_BATCHES,
    QUICK_S,
    TOTAL_S,
    ProfileOptions,
    check_share,
    machine_name,
    measure_profile,
)
from firstline_core.profile.summary import accuracies
from firstline_core.runtime.select import CPU
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

BundleOption = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle; with --on also its name.", show_default=False)
]
ThreadsOption = Annotated[str, typer.Option(metavar="N,...", help="Threads of a run; default: 1 and all cores.")]
BatchesOption = Annotated[str, typer.Option(metavar="N,...", help="Samples of a query; default: 1,4,16.")]
ProvidersOption = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="ONNX Runtime's, each by itself. Default: CPUExecutionProvider; with --on those of the device's settings.",
    ),
]
VariantOption = Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="A fifth of the time.")]
AloneOption = Annotated[
    bool, typer.Option("--alone", help="Nothing else runs here: measure at the priority of a service.")
]
RemeasureOption = Annotated[bool, typer.Option("--remeasure", help="Measure known points again.")]
JoulesOption = Annotated[
    float, typer.Option(min=0, help="Stated energy of a busy core, if no sensor measures energy; 0: not stated.")
]
ThrottledOption = Annotated[
    float, typer.Option(metavar="SHARE", help="Measure single samples with this share of processor time too.")
]
SustainedOption = Annotated[
    float, typer.Option(metavar="MINUTES", help="Measure single samples after full load too, until heat settles.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with labels.csv (columns file, label) and images/ or images.zip: count right answers, instead of "
        "reading the accuracy from the manifest.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="With --data: this many images, spread evenly over labels.csv.")
]
MachineOption = Annotated[str, typer.Option(help="Name of this machine, instead of the host's.")]
OnOption = Annotated[str, typer.Option(metavar="DEVICE", help="Let this device of the fleet measure, beside its work.")]
VersionOption = Annotated[int, typer.Option(min=0, help="With --on: this version; 0: the version that answers there.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="With --on: wait until the device has measured.")]
CancelOption = Annotated[bool, typer.Option("--cancel", help="With --on: cancel the device's measurement.")]


def profile_command(
    bundle: BundleOption,
    *,
    threads: ThreadsOption = "",
    batches: BatchesOption = "",
    providers: ProvidersOption = "",
    variant: VariantOption = None,
    quick: QuickOption = False,
    alone: AloneOption = False,
    remeasure: RemeasureOption = False,
    joules_per_core_second: JoulesOption = 0.0,
    throttled: ThrottledOption = 0.0,
    sustained: SustainedOption = 0.0,
    draw: DrawOption = None,
    data: DataOption = None,
    limit: LimitOption = None,
    beside: BesideOption = None,
    machine: MachineOption = "",
    on: OnOption = "",
    version: VersionOption = 0,
    wait: WaitOption = True,
    cancel: CancelOption = False,
    gateway: GatewayOptions,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure what each model of the bundle costs, here or --on a device: latency, throughput, memory, energy.

    Each point (model, provider, threads, batch) is measured by a process of the lowest priority, and is written to
    profiles/ next to the bundle at once. A command that was ended early resumes where it was.
    """
    options = ProfileOptions(
        threads=_numbers(threads, "--threads", 0),
        batches=_numbers(batches, "--batches", 1) or (QUICK_BATCHES if quick else ()),
        providers=_providers(providers) if providers else (CPU,),
        variants=tuple(variant or ()),
        total_s=QUICK_S if quick else TOTAL_S,
        alone=alone,
        again=remeasure,
        joules_per_core_s=joules_per_core_second,
        throttled_share=throttled,
        sustained_s=60 * sustained,
    )
    if on:
        _refuse_local_options(options, machine)
        named = bundle_named(bundle)
        if cancel:
            cancel_on(on, named.name, gateway, output)
            return
        request = NewProfileRequest(
            named.name,
            version or named.version,
            quick,
            tuple(options.threads),
            _numbers(batches, "--batches", 1),
            remeasure,
            variants=tuple(options.variants),
            providers=_providers(providers) if providers else (),
            throttled_share=throttled,
        )
        accuracy = accuracies(named.manifest) if named.manifest is not None else {}
        if data is not None or limit is not None:
            accuracy = _accuracy(open_bundle(require_bundle(bundle)), data, limit, ())
        picture = picture_of(draw, beside, named.name, gateway)
        if accuracy or named.manifest is not None:  # otherwise the device's bundle states it
            _check_drawn(picture, accuracy, request.batches)
        profile_on(on, request, gateway, output, wait=wait, accuracy=accuracy, picture=picture)
        return
    if cancel or version or not wait:
        raise ConfigError("--cancel, --version and --no-wait are of a device's profile; name the device with --on.")
    opened = open_bundle(require_bundle(bundle))
    picture = picture_of(draw, beside, opened.manifest.name, gateway)
    accuracy = _accuracy(opened, data, limit, options.variants)  # fail before measuring if the data does not fit
    _check_drawn(picture, accuracy, options.batches)
    _profile_here(opened, _named(machine) if machine else machine_name(), options, accuracy, output, picture=picture)


def _refuse_local_options(options: ProfileOptions, machine: str) -> None:
    """Raises ConfigError for options that do not apply to a device."""
    check_share(options.throttled_share)
    local = {
        "--alone": options.alone,
        "--machine": machine,
        "--joules-per-core-second": options.joules_per_core_s,
    }
    for option, stated in local.items():
        if stated:
            raise ConfigError(f"{option} is for this machine; a device measures by its own settings.")
    if options.sustained_s:
        raise ConfigError("--sustained heats a machine for minutes, which no request may do to one that serves.")


def _profile_here(
    bundle: Bundle,
    machine: str,
    options: ProfileOptions,
    accuracy: dict[Sha256, float],
    output: Output,
    *,
    picture: Picture | None,
) -> None:
    path = profile_path(bundle.path.resolve().parent, bundle.manifest.name, machine)
    with progress("Profiling") as on_progress:
        found = measure_profile(
            bundle,
            path,
            options,
            machine=machine,
            progress=lambda done, total, what: on_progress(done, total),
            warn=lambda sentence: typer.echo(sentence, err=True),
        )
    print_profile(found, accuracy, output, picture, f"Written: {path}")
    if not found.points:
        raise typer.Exit(1)


def _check_drawn(picture: Picture | None, accuracy: Mapping[Sha256, float], batches: Sequence[int]) -> None:
    """Fails before models run for a minute if the picture cannot be drawn."""
    if picture is None:
        return
    check_accuracy(accuracy)
    if batches and 1 not in batches:
        raise ConfigError("--draw shows queries of one sample; include 1 in --batches.")


def _accuracy(bundle: Bundle, data: Path | None, limit: int | None, variants: Sequence[str]) -> dict[Sha256, float]:
    """Accuracy by model digest, counted on the data; without data, as the manifest states it."""
    if data is None:
        if limit is not None:
            raise ConfigError("--limit counts the images of --data; name that folder too.")
        return accuracies(bundle.manifest)
    dataset = open_dataset(data, limit)
    with progress("Counting right answers") as on_progress:
        found = accuracies_on(bundle, dataset, variants, progress=on_progress)
    typer.echo(f"Accuracy is counted on {len(dataset):,} images of {data}.", err=True)
    return found


def _named(machine: str) -> str:
    try:
        return msgspec.convert(machine, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"--machine {machine[:80]!r} is no name: take letters, digits, '.', '_' and '-', at most 64."
        ) from error


def _providers(listed: str) -> tuple[str, ...]:
    found = tuple(filter(None, listed.split(",")))
    if not found:
        raise ConfigError("--providers names none; leave it out to use the processor only.")
    return found


def _numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise ConfigError(f"{option} {text} is no list of numbers, such as 1,2.") from None
    if any(not least <= one <= 1024 for one in found):
        raise ConfigError(f"{option} {text}: each number is from {least} to 1024.")
    return found
