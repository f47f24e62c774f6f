"""The command `firstline`: its commands by panel. The module of a command is imported when it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.main import get_command

from firstline.cli.command import Group, command_line, run_command_line

PANELS = {
    "Workflow": ("demo", "pair", "run", "infer", "certify", "evaluate", "compress"),
    "Bundles": ("bundle", "model", "alias", "profile"),
    "Fleet": ("device", "config", "rollout", "fleet"),
    "Operate": ("console", "context", "keys", "audit", "webhook"),
}
"""Verbs are commands, nouns are groups of commands; each is a module of this package with an `app`."""


class _Commands(Group):
    """The commands by panel, each made of its module when it is asked for."""

    commands: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(name for names in PANELS.values() for name in names)  # for suggestions

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = get_command(import_module(f"firstline.cli.{cmd_name}").app)
            self.commands[cmd_name].name = cmd_name
        return self.commands.get(cmd_name)

    def panels(self) -> Mapping[str, Iterable[str]]:
        return PANELS


app = command_line(_Commands)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"firstline {version('firstline')}")
        raise typer.Exit


@app.callback(help="Make pairs of models, certify them, and operate a fleet of devices that run them.")
def firstline(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declares the options of `firstline` without a command."""


def run() -> int:
    """Runs the command line of this process and returns its exit code."""
    return run_command_line(app)
