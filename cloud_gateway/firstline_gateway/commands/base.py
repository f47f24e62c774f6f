"""The options of every command: its configuration, and the form of what it prints."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.command_line import Commands, Parser, add_command

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from firstline_gateway.settings.settings import Settings


def add_action(
    commands: Commands, name: str, action: Callable[[argparse.Namespace], int], purpose: str, example: str
) -> Parser:
    """Adds a command with the option `--config`, which a function carries out; see `add_command`."""
    command = add_command(commands, name, purpose, example=f"firstline-gateway {example}")
    command.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; the defaults apply without it")
    command.set_defaults(command=action)
    return command


def settings_of(arguments: argparse.Namespace, flags: Mapping[str, object] | None = None) -> Settings:
    """Returns the settings that the command line names.

    Args:
        arguments: with `config`.
        flags: by the setting that each replaces, as SECTION.KEY.

    Raises:
        ConfigError: they make no sense.
    """
    from firstline_gateway.settings.load import load

    return load(arguments.config, environ=os.environ, overrides=flags)


def naming_sources(
    arguments: argparse.Namespace, flags: Mapping[str, object] | None = None
) -> AbstractContextManager[None]:
    """Adds the source of a setting to an error that names the setting; with the arguments of `settings_of`."""
    from firstline_gateway.settings.load import naming_sources

    return naming_sources(arguments.config, os.environ, flags or {})


@contextmanager
def transaction(settings: Settings) -> Iterator[Connection]:
    """Opens the store and yields one transaction that writes."""
    from firstline_gateway.identity.authorities import had_store
    from firstline_gateway.tables import open_database

    with (
        closing(open_database(settings.store, must_exist=had_store(settings.identity))) as database,
        database.begin() as connection,
    ):
        yield connection


def show(arguments: argparse.Namespace, text: str, value: object) -> None:
    """Prints one or the other, as `--output` says."""
    print(json.dumps(value) if arguments.output == "json" else text, flush=True)  # noqa: T201
