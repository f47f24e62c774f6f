"""`firstline bundle`: `inspect` and `verify` here, `create` in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.create import create
from firstline.cli.output import Output, OutputOption, print_json, print_summary
from firstline.workbench.inspect import summarise, verify
from firstline_core.bundle.store import open_bundle

app = typer.Typer(no_args_is_help=True, help="Make bundles from model files, look into them, check them.")
app.command("create")(create)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="Folder of the bundle.", show_default=False)],
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a bundle's models, digests, steps and policy."""
    summary = summarise(open_bundle(path))
    if output is Output.JSON:
        print_json(summary)
    else:
        print_summary(path, summary)


@app.command("verify")
def verify_bundle(
    path: Annotated[Path, typer.Argument(help="Folder of the bundle.", show_default=False)],
    output: OutputOption = Output.TEXT,
) -> None:
    """Check every file's sha256, load every model and run it once. Exit code 1 where something fails."""
    checks = verify(path)
    failed = any(check.outcome == "failed" for check in checks)
    if output is Output.JSON:
        print_json({"path": str(path), "ok": not failed, "checks": checks})
    else:
        for check in checks:
            typer.echo(f"{check.outcome:<7} {check.what}: {check.detail}")
    if failed:
        raise typer.Exit(1)
