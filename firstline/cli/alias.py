"""`firstline alias`: names for versions of models in a gateway's registry, such as champion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions, ModelArgument, VersionArgument
from firstline.cli.output import date, table

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline_core.fleet.registry import AliasChange

app = command_group("Name versions of models: champion, canary, and so on.")

AliasArgument = Annotated[str, typer.Argument(metavar="ALIAS", help="For example champion.")]


@command(app, "set", example="firstline alias set digits champion 2")
def set_alias(model: ModelArgument, alias: AliasArgument, version: VersionArgument, gateway: GatewayOptions) -> Report:
    """Point an alias to a version."""
    with gateway.registry(model) as registry:
        return _alias_report(registry.set_alias(model, alias, version))


@command(app, "revert", example="firstline alias revert digits champion")
def revert_alias(model: ModelArgument, alias: AliasArgument, gateway: GatewayOptions) -> Report:
    """Point an alias back to the version before its last change."""
    with gateway.registry(model) as registry:
        return _alias_report(registry.revert_alias(model, alias))


@command(app, "delete", example="firstline alias delete digits champion")
def delete_alias(model: ModelArgument, alias: AliasArgument, gateway: GatewayOptions) -> Report:
    """Delete an alias; its history is kept."""
    with gateway.registry(model) as registry:
        return _alias_report(registry.remove_alias(model, alias))


@command(app, "list", example="firstline alias list digits")
def list_aliases(
    gateway: GatewayOptions,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Only aliases of this model.")] = "",
) -> Report:
    """List aliases and their versions."""
    with gateway.registry() as registry:
        return _aliases_report(registry.aliases(model))


@command(app, "history", example="firstline alias history digits champion")
def alias_history(model: ModelArgument, alias: AliasArgument, gateway: GatewayOptions) -> Report:
    """Show the versions of an alias and who changed it, the newest first."""
    with gateway.registry(model) as registry:
        return _aliases_report(registry.alias_history(model, alias))


def _alias_report(change: AliasChange) -> Report:
    version = f"version {change.version}" if change.version is not None else "nothing"
    return Report(change, f"{change.model} {change.alias} points to {version}.")


def _aliases_report(changes: Sequence[AliasChange]) -> Report:
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
