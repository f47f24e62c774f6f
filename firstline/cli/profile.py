"""`firstline profile`: measures what models cost on machines, and stores, lists and uses the profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group
from firstline.cli.options import DATA_HELP, DataReading, GatewayOptions, VersionArgument, check_name, require_bundle
from firstline.cli.output import date, progress, size, table
from firstline.cli.profile_predict import predict_command
from firstline.cli.profile_split import split_command
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.cli.profile_source import bundle_named, profile_in, profile_on, profile_report
    from firstline.workbench.quality import qualities_on
    from firstline_core.bundle.store import Bundle, open_bundle
    from firstline_core.fleet.profiles import NewProfileRequest
    from firstline_core.profile.files import profile_path
    from firstline_core.profile.measure import ProfileOptions, machine_name, measure_profile
    from firstline_core.runtime.select import CPU
    from firstline_core.types import Sha256

app = command_group("Measure what models cost on machines; store, list and use the profiles.")


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of a measurement on this machine; of these a device takes only --quick.

    Attributes:
        threads: Threads of a run; default: 1 and all cores.
        batches: Samples of a query; default: 1,4,16.
        providers: ONNX Runtime's, each by itself. Default: CPUExecutionProvider.
        variant: Only this model; may be repeated.
        quick: A fifth of the time.
        remeasure: Measure known points again.
        alone: Nothing else runs here: measure at the priority of a service.
        joules_per_core_second: Stated energy of a busy core, if no sensor measures energy; 0: not stated.
        sustained: Also measure single samples after this long at full load, when hot.
        machine: Name of this machine, instead of the host's.
    """

    threads: Annotated[str, typer.Option(metavar="N,...")] = ""
    batches: Annotated[str, typer.Option(metavar="N,...")] = ""
    providers: Annotated[str, typer.Option(metavar="NAME,...")] = ""
    variant: list[str] | None = None
    quick: bool = False
    remeasure: bool = False
    alone: bool = False
    joules_per_core_second: Annotated[float, typer.Option(min=0)] = 0.0
    sustained: Annotated[float, typer.Option(metavar="MINUTES")] = 0.0
    machine: str = ""

    def wanted(self) -> ProfileOptions:
        """Returns the options; empty values leave the choice to the machine.

        Raises:
            ConfigError: a list that cannot be read.
        """
        providers = tuple(filter(None, self.providers.split(",")))
        if self.providers and not providers:
            raise ConfigError("--providers names none; leave it out to use the processor only.")
        return ProfileOptions(
            threads=_numbers(self.threads, "--threads", 0),
            batches=_numbers(self.batches, "--batches", 1),
            providers=providers or (CPU,),
            variants=tuple(self.variant or ()),
            quick=self.quick,
            alone=self.alone,
            again=self.remeasure,
            joules_per_core_s=self.joules_per_core_second,
            sustained_s=60 * self.sustained,
        )

    def refuse_on_device(self) -> None:
        """Raises ConfigError for an option that does not apply to a device."""
        for field in fields(self):
            if field.name != "quick" and getattr(self, field.name):
                option = f"--{field.name.replace('_', '-')}"
                raise ConfigError(
                    f"{option} is for this machine; a device measures by its own settings. On the device, `edge-agent "
                    "profile create` has --threads, --batches, --variant, --alone, --sustained and --remeasure."
                )


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """Where the accuracy of the models comes from."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Labelled data: measure quality, instead of reading the accuracy from the manifest. {DATA_HELP}",
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --data: this many rows, spread evenly over the data.")
    ] = None

    def of(self, bundle: Bundle, reading: DataReading, variants: Sequence[str]) -> dict[Sha256, float]:
        """Returns the quality by model digest, measured on the data; empty without data."""
        if self.data is None:
            if self.limit is not None:
                raise ConfigError("--limit counts the rows of --data; name that too.")
            return {}
        dataset = reading.open(self.data, bundle.manifest.inputs, self.limit)
        with progress("Measuring quality") as on_progress:
            found = qualities_on(bundle, dataset, variants, progress=on_progress)
        task = bundle.manifest.task
        name = task.quality if task.higher_is_better else "1 - the mean loss against the labels"
        typer.echo(f"The column accuracy has {name} on {len(dataset):,} rows of {self.data}.", err=True)
        return found


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The device that measures instead of this machine.

    Attributes:
        on: Let this device of the fleet measure while it serves.
        version: With --on: this version; 0: the version that answers there.
        wait: With --on: wait until the device has measured.
    """

    on: Annotated[str, typer.Option(metavar="DEVICE")] = ""
    version: Annotated[int, typer.Option(min=0)] = 0
    wait: Annotated[bool, typer.Option("--wait/--no-wait")] = True


@command(app, "create", example="firstline profile create digits --on press-7")
def create(
    bundle: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", help="Folder of the bundle; with --on also its name.", show_default=False),
    ],
    *,
    measuring: MeasureOptions,
    accuracy: AccuracyOptions,
    reading: DataReading,
    device: DeviceOptions,
    gateway: GatewayOptions,
) -> Report:
    """Measure what each model of the bundle costs, here or --on a device: latency, throughput, memory, energy.

    Each point (model, provider, threads, batch) is measured by a process of the lowest priority, and is written to
    profiles/ next to the bundle at once. A command that was ended early resumes where it was.
    """
    if device.on:
        measuring.refuse_on_device()
        named = bundle_named(bundle)
        request = NewProfileRequest(named.name, device.version or named.version, measuring.quick)
        known = named.accuracy
        if accuracy.data is not None or accuracy.limit is not None:
            known = accuracy.of(open_bundle(require_bundle(bundle)), reading, ())
        return profile_on(device.on, request, gateway, wait=device.wait, accuracy=known)
    if device.version or not device.wait:
        raise ConfigError("--version and --no-wait are of a device's profile; name the device with --on.")
    opened = open_bundle(require_bundle(bundle))
    options = measuring.wanted()
    known = accuracy.of(opened, reading, options.variants)  # fail before measuring if the data does not fit
    if measuring.machine:
        check_name(measuring.machine, "--machine")
    machine = measuring.machine or machine_name()
    path = profile_path(opened.path.resolve().parent, opened.manifest.name, machine)
    with progress("Profiling") as on_progress:
        found = measure_profile(
            opened,
            path,
            options,
            machine=machine,
            progress=lambda done, total, what: on_progress(done, total),
            warn=lambda sentence: typer.echo(sentence, err=True),
        )
    report = profile_report(found, known, f"Written: {path}")
    return report if found.points else report._replace(exit_code=EXIT_FAILED)


@command(app, "cancel", example="firstline profile cancel digits --on press-7")
def cancel(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", show_default=False)],
    on: Annotated[str, typer.Option(metavar="DEVICE")],
    gateway: GatewayOptions,
) -> Report:
    """Cancel a device's measurement of a bundle; points that it has measured stay there.

    Args:
        bundle: Folder or name of the bundle.
        on: Device of the fleet.
    """
    name = bundle_named(bundle).name
    with gateway.fleet() as fleet:
        fleet.profiles.cancel(on, name)
    return Report({"cancelled": {"device": on, "bundle": name}}, f"{on} no longer measures {name}.")


BundleArgument = Annotated[str, typer.Argument(metavar="BUNDLE", help="The bundle's name.")]
MachineArgument = Annotated[str, typer.Argument(metavar="MACHINE", help="A device, or another machine's name.")]


@command(app, "push", example="firstline profile push profiles/digits@bench.json")
def push(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Profile that `firstline profile create` wrote.")],
    gateway: GatewayOptions,
) -> Report:
    """Store a profile on the gateway, in place of the one of the same bundle, version and machine."""
    profile = profile_in(file)
    with gateway.fleet() as fleet:
        entry = fleet.profiles.put(profile)
    content = f"{counted(entry.points, 'point')}, {size(entry.size_bytes)}"
    return Report(entry, f"{entry.bundle} version {entry.version} on {entry.machine}: {content}.")


@command(app, "list", example="firstline profile list digits")
def list_profiles(
    gateway: GatewayOptions, bundle: Annotated[str, typer.Argument(metavar="[BUNDLE]")] = "", machine: str = ""
) -> Report:
    """List the profiles on the gateway.

    Args:
        bundle: Only this bundle.
        machine: Only of this device or machine.
    """
    with gateway.fleet() as fleet:
        entries = list(fleet.profiles.all(bundle, machine))
    rows = (
        (
            entry.bundle,
            str(entry.version),
            entry.machine,
            entry.board,
            f"{entry.points}{f' ({entry.refused} refused)' if entry.refused else ''}",
            date(entry.made_s or None),
            entry.by,
            entry.fingerprint[:12],
        )
        for entry in entries
    )
    columns = ("bundle", ">version", "machine", "board", ">points", "measured", "by", "fingerprint")
    return Report(entries, table(*columns, rows=rows))


@command(app, "get", example="firstline profile get digits 1 press-7")
def get(
    bundle: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", help="Name of the bundle; or its folder, for the accuracy of its models."),
    ],
    version: VersionArgument,
    machine: MachineArgument,
    gateway: GatewayOptions,
) -> Report:
    """Print a profile."""
    named = bundle_named(bundle)
    with gateway.fleet() as fleet:
        profile = fleet.profiles.get(named.name, version, machine)
    return profile_report(profile, named.accuracy)


@command(app, "delete", example="firstline profile delete digits 1 bench")
def delete(
    bundle: BundleArgument, version: VersionArgument, machine: MachineArgument, gateway: GatewayOptions
) -> Report:
    """Delete a profile from the gateway."""
    with gateway.fleet() as fleet:
        fleet.profiles.remove(bundle, version, machine)
    return Report(
        {"removed": {"bundle": bundle, "version": version, "machine": machine}},
        f"The profile of {bundle} version {version} on {machine} is forgotten.",
    )


def _numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise ConfigError(f"{option} {text} is not a list of numbers, such as 1,2.") from None
    if any(not least <= one <= 1024 for one in found):
        raise ConfigError(f"{option} {text}: each number is from {least} to 1024.")
    return found


command(app, "predict", example="firstline profile predict profiles/digits@bench.json edge=500 full=100 --within 5")(
    predict_command
)
command(app, "split", example="firstline profile split digits --data digits/test --round-trip 20")(split_command)
