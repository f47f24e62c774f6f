"""`firstline profile`: what a bundle's models cost on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption
from firstline.cli.output import Output, OutputOption, progress
from firstline.cli.paths import require_bundle
from firstline.cli.picture import BesideOption, DrawOption, Picture, picture_of, print_profile
from firstline.cli.profile_on import bundle_named, cancel_on, profile_on, refuse_said
from firstline.cli.rollout_options import Where
from firstline.workbench.accuracy import accuracies_on
from firstline.workbench.dataset import open_dataset
from firstline.workbench.pareto import check_accuracy
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.fleet.profiles import ProfileAsked
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
from firstline_core.profile.pareto import accuracies
from firstline_core.runtime.select import CPU
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name


def profile_command(
    bundle: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", help="Folder of the bundle; with --on also its name.", show_default=False),
    ],
    *,
    threads: Annotated[str, typer.Option(metavar="N,...", help="Threads of a run; default: 1 and all cores.")] = "",
    batches: Annotated[str, typer.Option(metavar="N,...", help="Samples of a query; default: 1,4,16.")] = "",
    providers: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="ONNX Runtime's, each by itself. Default: CPUExecutionProvider; with --on those of its settings.",
        ),
    ] = "",
    variant: Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the time.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Nothing else runs here: measure at the priority of a service.")
    ] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what is known already.")] = False,
    joules_per_core_second: Annotated[
        float, typer.Option(min=0, help="Stated cost, for energy that nothing measures; 0: none.")
    ] = 0.0,
    throttled: Annotated[
        float, typer.Option(metavar="SHARE", help="Measure single samples with this share of processor time too.")
    ] = 0.0,
    sustained: Annotated[
        float,
        typer.Option(metavar="MINUTES", help="Measure single samples after full load too, until heat settles."),
    ] = 0.0,
    draw: DrawOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with labels.csv (columns file, label) and images/ or images.zip: count right answers, instead "
            "of what the manifest says of them.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --data: this many images, spread evenly over labels.csv.")
    ] = None,
    beside: BesideOption = None,
    machine: Annotated[str, typer.Option(help="Name of this machine, instead of the host's.")] = "",
    on: Annotated[str, typer.Option(metavar="DEVICE", help="A device of the fleet measures, beside its work.")] = "",
    version: Annotated[int, typer.Option(min=0, help="With --on: this version; 0: the one that answers there.")] = 0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="With --on: until the device has measured.")] = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="With --on: the device is to measure no more.")] = False,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Measure what each model of the bundle costs, here or --on a device: latency, throughput, memory, energy.

    Each point (model, provider, threads, batch) is measured by a process of the lowest priority, and is written to
    profiles/ beside the bundle at once: started again, it goes on where it was ended.
    """
    if on:
        check_share(throttled)
        refuse_said(
            {
                "--alone": alone,
                "--machine": machine,
                "--joules-per-core-second": joules_per_core_second,
            }
        )
        if sustained:
            raise ConfigError("--sustained heats a machine for minutes, which no request may do to one that serves.")
        where, named = Where(gateway, key_file, ca), bundle_named(bundle)
        if cancel:
            cancel_on(on, named.name, where, output)
            return
        counts = _numbers(threads, "--threads", 0), _numbers(batches, "--batches", 1)
        asked = ProfileAsked(
            named.name,
            version or named.version,
            quick,
            *counts,
            anew,
            variants=tuple(variant or ()),
            providers=_providers(providers) if providers else (),
            throttled_share=throttled,
        )
        known = accuracies(named.manifest) if named.manifest is not None else {}
        if data is not None or limit is not None:
            known = _accuracy(open_bundle(require_bundle(bundle)), data, limit, ())
        picture = picture_of(draw, beside, named.name, where)
        if known or named.manifest is not None:  # else the device's bundle says it
            _check_drawn(picture, known, asked.batches)
        profile_on(on, asked, where, output, wait=wait, accuracy=known, picture=picture)
        return
    if cancel or version or not wait:
        raise ConfigError("--cancel, --version and --no-wait are of a device's profile; name the device with --on.")
    opened = open_bundle(require_bundle(bundle))
    picture = picture_of(draw, beside, opened.manifest.name, Where(gateway, key_file, ca))
    wanted = ProfileOptions(
        threads=_numbers(threads, "--threads", 0),
        batches=_numbers(batches, "--batches", 1) or (QUICK_BATCHES if quick else ()),
        providers=_providers(providers) if providers else (CPU,),
        variants=tuple(variant or ()),
        total_s=QUICK_S if quick else TOTAL_S,
        alone=alone,
        again=anew,
        joules_per_core_s=joules_per_core_second,
        throttled_share=throttled,
        sustained_s=60 * sustained,
    )
    name = _named(machine) if machine else machine_name()
    accuracy = _accuracy(opened, data, limit, wanted.variants)  # data that does not fit is told before the minute
    _check_drawn(picture, accuracy, wanted.batches)
    path = profile_path(bundle.resolve().parent, opened.manifest.name, name)
    with progress("Profiling") as told:
        found = measure_profile(
            opened,
            path,
            wanted,
            machine=name,
            progress=lambda done, total, what: told(done, total),
            warn=lambda sentence: typer.echo(sentence, err=True),
        )
    print_profile(found, accuracy, output, picture, f"Written: {path}")
    if not found.points:
        raise typer.Exit(1)


def _check_drawn(picture: Picture | None, accuracy: Mapping[Sha256, float], batches: Sequence[int]) -> None:
    """What cannot be drawn is told before models run for a minute."""
    if picture is None:
        return
    check_accuracy(accuracy)
    if batches and 1 not in batches:
        raise ConfigError("--draw shows queries of one sample; let --batches have 1.")


def _accuracy(bundle: Bundle, data: Path | None, limit: int | None, variants: Sequence[str]) -> dict[Sha256, float]:
    """As counted on the data; where there is none, as the manifest says."""
    if data is None:
        if limit is not None:
            raise ConfigError("--limit counts the images of --data; name that folder too.")
        return accuracies(bundle.manifest)
    dataset = open_dataset(data, limit)
    with progress("Counting right answers") as told:
        found = accuracies_on(bundle, dataset, variants, progress=told)
    typer.echo(f"Accuracy is counted on {len(dataset):,} images of {data}.", err=True)
    return found


def _named(machine: str) -> str:
    try:
        return msgspec.convert(machine, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"--machine {machine[:80]!r} is no name: take letters, digits, '.', '_' and '-', at most 64."
        ) from error


def _providers(said: str) -> tuple[str, ...]:
    found = tuple(filter(None, said.split(",")))
    if not found:
        raise ConfigError("--providers names none; leave it out for the processor alone.")
    return found


def _numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise ConfigError(f"{option} {text} is no list of numbers, such as 1,2.") from None
    if any(not least <= one <= 1024 for one in found):
        raise ConfigError(f"{option} {text}: each number is from {least} to 1024.")
    return found
