"""The command line `firstline-gateway`.

A command imports what only it needs: a health check every few seconds must not load a model runtime.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial

from firstline_core.command_line import Parser, run_program, run_with_output
from firstline_gateway import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 if all is well; 1 if not; 2 if the configuration or the command line is wrong.
    """
    serves = (sys.argv[1:] if argv is None else argv)[:1] == ["run"]
    return run_program(partial(_run, argv), _report, name="firstline-gateway", extra="gateway", serves=serves)


def _run(argv: Sequence[str] | None) -> int:
    gc.disable()  # nothing of an import is garbage
    try:
        commands = parser()
    finally:
        gc.enable()
    arguments = commands.parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    return run_with_output(lambda: command(arguments), _report)


def parser() -> Parser:
    """Returns the parser of all commands."""
    # Imported here, so that `main` reports a missing package.
    from firstline_gateway.commands import authority, init, keys, run, status
    from firstline_gateway.commands.backup import command as backup

    root = Parser(prog="firstline-gateway", description="Run full models for devices and applications.")
    root.add_argument("--version", action="version", version=f"firstline-gateway {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    init.add_commands(commands)
    run.add_commands(commands)
    status.add_commands(commands)
    keys.add_commands(commands)
    authority.add_commands(commands)
    backup.add_commands(commands)
    return root


def _report(sentence: str) -> None:
    """Writes the reason of a failure to stderr."""
    print(f"firstline-gateway: {sentence}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
