"""`firstline model profile`: stores, lists and shows profiles on a gateway; `firstline profile` measures them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.dates import date
from firstline.cli.device_profiling import bundle_named
from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption, fleet_at
from firstline.cli.output import Output, OutputOption, print_json, print_table, size, table
from firstline.cli.picture import BesideOption, DrawOption, picture_of, print_profile
from firstline.cli.profile_source import profile_in
from firstline.cli.rollout_options import Where
from firstline_core.profile.pareto import accuracies
from firstline_core.telemetry.wording import counted

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Store, list and show the profiles of models on machines."
)

BundleArgument = Annotated[str, typer.Argument(metavar="BUNDLE", help="The bundle's name.")]
VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A number.")]
MachineArgument = Annotated[str, typer.Argument(metavar="MACHINE", help="A device, or another machine's name.")]


@app.command()
def push(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `firstline profile` wrote it.")],
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Store a profile on the gateway, replacing that of the same bundle, version and machine."""
    profile = profile_in(file)
    with fleet_at(gateway, key_file, ca) as fleet:
        kept = fleet.profiles.put(profile)
    if output is Output.JSON:
        print_json(kept)
    else:
        points = counted(kept.points, "point")
        typer.echo(f"{kept.bundle} version {kept.version} on {kept.machine}: {points}, {size(kept.size_bytes)}.")


@app.command("ls")
def list_profiles(
    bundle: Annotated[str, typer.Argument(metavar="[BUNDLE]", help="One bundle's alone.")] = "",
    *,
    machine: Annotated[str, typer.Option(help="Only of this device or machine.")] = "",
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the profiles on the gateway."""
    with fleet_at(gateway, key_file, ca) as fleet:
        found = list(fleet.profiles.all(bundle, machine))
    if output is Output.JSON:
        print_json(found)
        return
    made = table("bundle", ">version", "machine", "board", ">points", "measured", "by", "fingerprint")
    for one in found:
        points = f"{one.points}{f' ({one.refused} refused)' if one.refused else ''}"
        measured = date(one.made_s) if one.made_s else "-"
        made.add_row(
            one.bundle, str(one.version), one.machine, one.board, points, measured, one.by, one.fingerprint[:12]
        )
    print_table(made)


@app.command()
def show(
    bundle: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE", help="The bundle's name; or its folder, which says how good its models are."),
    ],
    version: VersionArgument,
    machine: MachineArgument,
    *,
    draw: DrawOption = None,
    beside: BesideOption = None,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a profile."""
    named, where = bundle_named(bundle), Where(gateway, key_file, ca)
    accuracy = accuracies(named.manifest) if named.manifest is not None else {}
    picture = picture_of(draw, beside, named.name, where)
    with fleet_at(*where) as fleet:
        found = fleet.profiles.get(named.name, version, machine)
    print_profile(found, accuracy, output, picture)


@app.command("rm")
def remove(
    bundle: BundleArgument,
    version: VersionArgument,
    machine: MachineArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a profile from the gateway."""
    with fleet_at(gateway, key_file, ca) as fleet:
        fleet.profiles.remove(bundle, version, machine)
    if output is Output.JSON:
        print_json({"removed": {"bundle": bundle, "version": version, "machine": machine}})
    else:
        typer.echo(f"The profile of {bundle} version {version} on {machine} is forgotten.")
