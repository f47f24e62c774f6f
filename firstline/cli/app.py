"""The command `firstline`, with its commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from firstline.cli import (
    audit,
    bundle,
    certify,
    compress,
    config,
    device,
    evaluate,
    fleet,
    job,
    keys,
    model,
    predict,
    profile,
    rollout,
    split,
    stored_profiles,
)
from firstline.cli.command import command, command_line, run_command_line
from firstline.cli.console import console
from firstline.cli.demo import demo
from firstline.cli.infer import infer_command
from firstline.cli.pair import pair_command
from firstline.cli.run import run_command

app = command_line()
app.add_typer(bundle.app, name="bundle")
app.add_typer(device.app, name="device")
app.add_typer(job.app, name="job")
app.add_typer(keys.app, name="keys")
app.add_typer(model.app, name="model")
app.add_typer(model.alias_app, name="alias")
app.add_typer(stored_profiles.app, name="profile")
app.add_typer(config.app, name="config")
app.add_typer(rollout.app, name="rollout")
app.add_typer(fleet.app, name="fleet")
app.add_typer(audit.app, name="audit")
command(app, "evaluate")(evaluate.evaluate_bundle)
command(app, "certify")(certify.certify_command)
command(app, "compress")(compress.compress_command)
command(stored_profiles.app, "create")(profile.profile_command)
command(stored_profiles.app, "cancel")(profile.cancel_command)
command(stored_profiles.app, "predict")(predict.predict_command)
command(stored_profiles.app, "split")(split.split_command)
command(app, "pair")(pair_command)
command(app, "infer")(infer_command)
command(app, "run")(run_command)
command(app, "console")(console)
command(app, "demo")(demo)


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
    return run_command_line(app)
