"""`firstline model alias`: names for versions, such as champion and canary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions
from firstline.cli.output import date, table
from firstline_core.fleet.registry import AliasChange

app = command_group("Name versions: champion, canary, and so on.")

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The bundle's name.")]
AliasArgument = Annotated[str, typer.Argument(metavar="ALIAS", help="For example champion.")]


@command(app, "set")
def set_alias(
    model: ModelArgument,
    alias: AliasArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1)],
    gateway: GatewayOptions,
) -> Report:
    """Point an alias to a version."""
    with gateway.registry() as registry:
        return _change(registry.set_alias(model, alias, version))


@command(app, "revert")
def revert(model: ModelArgument, alias: AliasArgument, gateway: GatewayOptions) -> Report:
    """Point an alias back to the version before its last change."""
    with gateway.registry() as registry:
        return _change(registry.revert_alias(model, alias))


@command(app, "rm")
def remove(model: ModelArgument, alias: AliasArgument, gateway: GatewayOptions) -> Report:
    """Delete an alias; its history is kept."""
    with gateway.registry() as registry:
        return _change(registry.remove_alias(model, alias))


@command(app, "ls")
def list_aliases(
    gateway: GatewayOptions,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Only aliases of this model.")] = "",
) -> Report:
    """List aliases and their versions."""
    with gateway.registry() as registry:
        return _list(registry.aliases(model))


@command(app, "history")
def history(model: ModelArgument, alias: AliasArgument, gateway: GatewayOptions) -> Report:
    """Show the versions of an alias and who changed it, the newest first."""
    with gateway.registry() as registry:
        return _list(registry.alias_history(model, alias))


def _change(change: AliasChange) -> Report:
    version = f"version {change.version}" if change.version is not None else "nothing"
    return Report(change, f"{change.model} {change.alias} stands for {version}.")


def _list(changes: Sequence[AliasChange]) -> Report:
    rows = (
        (
            change.model,
            change.alias,
            str(change.version) if change.version is not None else "-",
            date(change.at_s),
            change.by,
        )
        for change in changes
    )
    return Report(changes, table("model", "alias", ">version", "since", "by", rows=rows))
