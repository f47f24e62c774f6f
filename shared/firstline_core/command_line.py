"""Parsers of the command lines of both tiers: nouns and verbs, an example each, and a hint at what was meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from firstline_core.errors import did_you_mean

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction["Parser"]

_CHOICES = re.compile(r"(.*invalid choice: '([^']*)') \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser that names the command or the option that a mistyped one probably means.

    Args:
        example: a complete command line for the end of the help; "" for none.
        epilog: more at the end of the help.
        **settings: see `argparse.ArgumentParser`.
    """

    def __init__(self, *, example: str = "", epilog: str | None = None, **settings: Any) -> None:
        shown = f"example:\n  {example}\n" if example else ""
        end = "\n".join(filter(None, (shown, epilog)))
        super().__init__(epilog=end, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self.example = example

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reports an unknown option of a command here, where its options are known."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.example and unknown[0].startswith("-"):
            word = unknown[0].partition("=")[0]
            self.error(f"unknown option {word}{did_you_mean(word, re.findall('--[a-z-]+', self.format_help()))}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2, and a hint at a similar command if one is mistyped."""
        if choices := _CHOICES.fullmatch(message):
            end = did_you_mean(choices[2], re.findall(r"[\w-]+", choices[3]))
            message = choices[1] + end if end != "." else message
        super().error(message)


def add_group(commands: Commands, noun: str, purpose: str) -> Commands:
    """Adds the noun of several commands, and returns the place of their verbs."""
    group = commands.add_parser(noun, help=purpose, description=sentence(purpose))
    return group.add_subparsers(required=True, metavar="COMMAND")


def add_command(
    commands: Commands,
    name: str,
    purpose: str,
    *,
    example: str,
    epilog: str = "",
    forms: Sequence[str] = ("text", "json"),
) -> Parser:
    """Adds a command with the option `--output`.

    Args:
        commands: of the program, or of a noun.
        name: of the command.
        purpose: of the command, in the imperative, without capital and full stop.
        example: a complete command line.
        epilog: more at the end of the help.
        forms: of the output; the first is the default.
    """
    command = commands.add_parser(name, help=purpose, description=sentence(purpose), example=example, epilog=epilog)
    command.add_argument("-o", "--output", choices=forms, default=forms[0], help="format of the output on stdout")
    return command


def sentence(purpose: str) -> str:
    """Returns a purpose with capital and full stop."""
    return f"{purpose[0].upper()}{purpose[1:]}."
