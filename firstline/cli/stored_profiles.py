"""`firstline profile push|list|get|delete`: the profiles that a gateway stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.device_profiling import bundle_named
from firstline.cli.options import GatewayOptions
from firstline.cli.output import Output, OutputOption, date, size, table
from firstline.cli.profile_source import print_profile, profile_in
from firstline_core.profile.summary import accuracies
from firstline_core.telemetry.wording import counted

app = command_group("Measure what models cost on machines; store, list and use the profiles.")

BundleArgument = Annotated[str, typer.Argument(metavar="BUNDLE", help="The bundle's name.")]
VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A number.")]
MachineArgument = Annotated[str, typer.Argument(metavar="MACHINE", help="A device, or another machine's name.")]


@command(app, "push")
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


@command(app, "list")
def list_profiles(
    gateway: GatewayOptions,
    bundle: Annotated[str, typer.Argument(metavar="[BUNDLE]", help="Only this bundle.")] = "",
    machine: Annotated[str, typer.Option(help="Only of this device or machine.")] = "",
) -> Report:
    """List the profiles on the gateway."""
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


@command(app, "get")
def get(
    bundle: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", help="Name of the bundle; or its folder, for the accuracy of its models."),
    ],
    version: VersionArgument,
    machine: MachineArgument,
    *,
    gateway: GatewayOptions,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a profile."""
    named = bundle_named(bundle)
    accuracy = accuracies(named.manifest) if named.manifest is not None else {}
    with gateway.fleet() as fleet:
        profile = fleet.profiles.get(named.name, version, machine)
    print_profile(profile, accuracy, output)


@command(app, "delete")
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
