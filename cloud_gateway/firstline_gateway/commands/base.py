"""The options of every command: its configuration, and the form of what it prints."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Settings


def add_command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str, *, config: bool = True
) -> argparse.ArgumentParser:
    """Adds a command to a parser's; `text` says in the imperative what it does."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    if config:
        parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; the defaults apply without it")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output format")
    parser.set_defaults(command=command)
    return parser


def settings_of(arguments: argparse.Namespace, **overrides: object) -> Settings:
    """The settings that the command line names.

    Args:
        arguments: with `config`.
        overrides: flags, as SECTION__KEY.

    Raises:
        ConfigError: they make no sense.
    """
    return load(
        arguments.config,
        environ=os.environ,
        overrides={key.replace("__", "."): value for key, value in overrides.items()},
    )


def show(arguments: argparse.Namespace, text: str, value: object) -> None:
    """Prints one or the other, as `--output` says."""
    print(json.dumps(value) if arguments.output == "json" else text, flush=True)  # noqa: T201
