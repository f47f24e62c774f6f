"""`firstline model alias`: names for versions, such as champion and canary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from firstline.cli.dates import date
from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption, registry_at
from firstline.cli.output import Output, OutputOption, print_json, print_table, table
from firstline_core.fleet.registry import AliasChange

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Name versions: champion, canary, and so on.")

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The bundle's name.")]
AliasArgument = Annotated[str, typer.Argument(metavar="ALIAS", help="For example champion.")]


@app.command("set")
def set_alias(
    model: ModelArgument,
    alias: AliasArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1)],
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Point an alias to a version."""
    with registry_at(gateway, key_file, ca) as registry:
        _told(registry.set_alias(model, alias, version), output)


@app.command("revert")
def revert(
    model: ModelArgument,
    alias: AliasArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Point an alias back to the version before its last change."""
    with registry_at(gateway, key_file, ca) as registry:
        _told(registry.revert_alias(model, alias), output)


@app.command("rm")
def remove(
    model: ModelArgument,
    alias: AliasArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete an alias; its history is kept."""
    with registry_at(gateway, key_file, ca) as registry:
        _told(registry.remove_alias(model, alias), output)


@app.command("ls")
def list_aliases(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Only aliases of this model.")] = "",
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List aliases and their versions."""
    with registry_at(gateway, key_file, ca) as registry:
        _listed(registry.aliases(model), output)


@app.command("history")
def history(
    model: ModelArgument,
    alias: AliasArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the versions of an alias and who changed it, the newest first."""
    with registry_at(gateway, key_file, ca) as registry:
        _listed(registry.alias_history(model, alias), output)


def _told(change: AliasChange, output: Output) -> None:
    if output is Output.JSON:
        print_json(change)
    else:
        stands = f"version {change.version}" if change.version is not None else "nothing"
        typer.echo(f"{change.model} {change.alias} stands for {stands}.")


def _listed(changes: Sequence[AliasChange], output: Output) -> None:
    if output is Output.JSON:
        print_json(changes)
        return
    made = table("model", "alias", ">version", "since", "by")
    for one in changes:
        version = str(one.version) if one.version is not None else "-"
        made.add_row(one.model, one.alias, version, date(one.at_s), one.by)
    print_table(made)
