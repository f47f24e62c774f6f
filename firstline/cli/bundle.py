"""`firstline bundle`: `inspect` and `verify` here, `create` in a file of its own."""

from __future__ import annotations

import typer

from firstline.cli.create import STEPS_HELP, create
from firstline.cli.output import Output, OutputOption, print_json, print_summary
from firstline.cli.paths import BundleArgument, require_bundle
from firstline.workbench.inspect import summarise, verify
from firstline_core.bundle.store import open_bundle

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make bundles from model files, look into them, check them."
)
app.command("create", epilog=STEPS_HELP)(create)


@app.command()
def inspect(
    path: BundleArgument,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a bundle's models, digests, steps and policy."""
    summary = summarise(open_bundle(require_bundle(path)))
    if output is Output.JSON:
        print_json(summary)
    else:
        print_summary(path, summary)


@app.command("verify")
def verify_bundle(
    path: BundleArgument,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check every file's sha256, load every model and run it once. Exit code 1 where something fails."""
    checks = verify(require_bundle(path))
    failed = any(check.outcome == "failed" for check in checks)
    if output is Output.JSON:
        print_json({"path": str(path), "ok": not failed, "checks": checks})
    else:
        for check in checks:
            typer.echo(f"{check.outcome:<7} {check.what}: {check.detail}")
    if failed:
        raise typer.Exit(1)
