"""`firstline device ls|get|tag|accept|decommission`: the devices of a fleet, as they are now."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption, fleet_at
from firstline.cli.output import Output, OutputOption, print_json, print_table, table
from firstline.fleet import wording
from firstline_core.errors import ConfigError
from firstline_core.fleet.rest import Tag
from firstline_core.hardware.text import catalogue_lines

NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="The devices.")]


def add_to(app: typer.Typer) -> None:
    """Adds these commands to those that invite and revoke devices."""
    app.command("ls")(_list)
    app.command("get")(_get)
    app.command("tag")(_tag)
    app.command("accept")(_accept)
    app.command("decommission")(_decommission)


def _list(
    *,
    selector: Annotated[str, typer.Option(help="Only devices with these tags, e.g. site=berlin,!test.")] = "",
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List devices: the models that they run, and when they were last seen."""
    with fleet_at(gateway, key_file, ca) as fleet:
        found = list(fleet.fleet(selector))
    if output is Output.JSON:
        print_json(found)
        return
    made = table("device", ">heard of", "runs", "is to run", "tags")
    for device in found:
        made.add_row(
            device.name,
            wording.age(device.last_seen_age_s),
            wording.runs(device),
            wording.wanted(device),
            wording.tags(device),
        )
    print_table(made)


def _get(
    name: Annotated[str, typer.Argument(help="The device.")],
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show one device."""
    with fleet_at(gateway, key_file, ca) as fleet:
        found = fleet.device(name)
    if output is Output.JSON:
        print_json(found)
        return
    accepted = "" if found.accepted else " (not accepted)"
    typer.echo(f"{found.name}{accepted}: heard of {wording.age(found.last_seen_age_s)} ago; {wording.tags(found)}")
    typer.echo(f"runs {wording.runs(found)}; is to run {wording.wanted(found)}")
    for update in found.reported.updates if found.reported is not None else ():
        why = f": {update.reason} {update.message}".rstrip() if update.reason else ""
        what = "" if update.what == "model" else f"{update.what} "
        typer.echo(f"update to {what}{update.name} {update.version}: {update.state}{why}")
    for one in found.reported.profiles if found.reported is not None else ():
        points = f" ({one.done} of {one.total} points)" if one.total else ""
        typer.echo(f"profile of {one.bundle}: {one.state}{points}{f': {one.message}' if one.message else ''}")
    if found.reported is not None and found.reported.hardware is not None:
        for line in catalogue_lines(found.reported.hardware):
            typer.echo(line)


def _tag(
    name: Annotated[str, typer.Argument(help="The device.")],
    tags: Annotated[list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help="Tags to set; KEY- removes one.")],
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Set and remove tags of a device."""
    changes = dict(_change(text) for text in tags)
    with fleet_at(gateway, key_file, ca) as fleet:
        found = fleet.tag(name, changes)
    if output is Output.JSON:
        print_json(found)
    else:
        typer.echo(f"{found.name}: {wording.tags(found)}")


def _accept(
    names: NamesArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Accept devices that have been seen (fleet.accept = "by_hand")."""
    with fleet_at(gateway, key_file, ca) as fleet:
        for name in names:
            fleet.accept(name)
    _say("accepted", names, output)


def _decommission(
    names: NamesArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Decommission devices: revoke their access and delete everything stored about them."""
    with fleet_at(gateway, key_file, ca) as fleet:
        for name in names:
            fleet.decommission(name)
    _say("decommissioned", names, output)


def _say(word: str, names: list[str], output: Output) -> None:
    if output is Output.JSON:
        print_json({word: names})
    else:
        typer.echo(f"{word} {', '.join(names)}")


def _change(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if not equals:
        key = key.removesuffix("-")
    words = (key, value) if equals else (key,)
    try:
        msgspec.convert(words, tuple[Tag, ...])
    except msgspec.ValidationError:
        raise ConfigError(f"{text[:80]!a} is no tag; write KEY=VALUE to set one, KEY- to take one away.") from None
    if not equals and not text.endswith("-"):
        raise ConfigError(f"{text[:80]!a} has no value; write KEY=VALUE to set a tag, KEY- to take one away.")
    return key, value if equals else None
