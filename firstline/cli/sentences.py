"""What every command line of ours is made of: the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from firstline_core.errors import ConfigError, FirstlineError

EXIT_FAILED = 1
EXIT_USAGE = 2


class _Sentences(TyperGroup):
    """Says an error of ours in its one sentence; a traceback is for errors that are not."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FirstlineError as error:
            typer.echo(error.message, err=True)
            ctx.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def command_line() -> typer.Typer:
    """`firstline`, without a command yet."""
    return typer.Typer(
        name="firstline",
        cls=_Sentences,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,  # plain help and plain errors: a sentence, not a box
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run(app: typer.Typer) -> int:
    """Runs the command line of this process and returns its exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0
