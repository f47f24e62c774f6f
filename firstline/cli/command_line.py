"""The `typer` application that all commands share: errors become one sentence on stderr and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from firstline_core.errors import ConfigError, FirstlineError

EXIT_FAILED = 1
EXIT_USAGE = 2


class _ReportingGroup(TyperGroup):
    """Prints a `FirstlineError` as one sentence; any other error keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FirstlineError as error:
            typer.echo(error.message, err=True)
            ctx.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def command_line() -> typer.Typer:
    """Returns the application `firstline` without commands."""
    return typer.Typer(
        name="firstline",
        cls=_ReportingGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,  # plain help and plain errors: a sentence, not a box
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run_command_line(app: typer.Typer) -> int:
    """Runs the command line of this process and returns its exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0
