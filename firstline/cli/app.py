"""The command `firstline`: its commands, and the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from firstline.cli import audit, bundle, certify, config, detections, device, evaluate, fleet, job, keys, model, rollout
from firstline.cli.demo import demo
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


app = typer.Typer(
    name="firstline",
    cls=_Sentences,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # plain help and plain errors: a sentence, not a box
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bundle.app, name="bundle")
app.add_typer(device.app, name="device")
app.add_typer(job.app, name="job")
app.add_typer(keys.app, name="keys")
app.add_typer(model.app, name="model")
app.add_typer(config.app, name="config")
app.add_typer(rollout.app, name="rollout")
app.add_typer(fleet.app, name="fleet")
app.add_typer(audit.app, name="audit")
app.command("evaluate")(evaluate.evaluate_bundle)
app.command("certify")(certify.certify_command)
app.command("detections")(detections.detections_command)
app.command("demo")(demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"firstline {version('firstline')}")
        raise typer.Exit


@app.callback()
def firstline(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Tiered inference: make bundles, evaluate them, see the whole line run."""


def run() -> int:
    """Runs the command line of this process and returns its exit code."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    return 0
