"""`firstline job`: hand requests in at a gateway now, fetch their answers later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from firstline.cli.device import CaOption
from firstline.cli.output import Output, OutputOption, percent, print_json
from firstline.client.prediction import Prediction
from firstline.client.sync_client import Client
from firstline_core.errors import FirstlineError
from firstline_core.storage.secrets import read_secret

app = typer.Typer(help="Hand requests in at a gateway now, and fetch their answers later.", no_args_is_help=True)

GatewayOption = Annotated[str, typer.Option(metavar="URL", help="The gateway, such as https://gateway.example.com.")]
KeyFileOption = Annotated[
    str, typer.Option(metavar="FILE", help="Holds an API key with the scope infer; else FIRSTLINE_TOKEN has it.")
]


@app.command()
def submit(
    model: Annotated[str, typer.Argument(help="The bundle's name.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Images, or JSON; a job each.")],
    *,
    gateway: GatewayOption,
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Hand files in; prints the id of each job once the gateway keeps it."""
    jobs = []
    try:
        with _client(gateway, key_file, ca) as client:
            for file in files:
                jobs.append({"job": client.submit_file(model, file), "file": str(file)})
                if output is Output.TEXT:
                    typer.echo(jobs[-1]["job"])
    finally:  # those before one that is refused are kept, and run
        if output is Output.JSON:
            print_json({"jobs": jobs})


@app.command()
def result(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="As `submit` printed them.")],
    *,
    gateway: GatewayOption,
    timeout_s: Annotated[float, typer.Option(min=0, help="How long to wait for each (seconds).")] = 30.0,
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Wait for jobs, and print what came of each; the exit code is 1 where one has no result."""
    results: list[dict[str, object]] = []
    with _client(gateway, key_file, ca) as client:
        for job in jobs:
            try:
                found = client.result_file(job, timeout_s=timeout_s)
            except FirstlineError as error:
                results.append({"job": job, "error": error.message, "code": error.code})
                if output is Output.TEXT:
                    typer.echo(f"{job}: {error.message}", err=True)
            else:
                results.append(_described(job, found))
                if output is Output.TEXT:
                    typer.echo(f"{job}: {found.label} ({percent(found.probability)})")
    if output is Output.JSON:
        print_json({"results": results})
    if any("error" in each for each in results):
        raise typer.Exit(1)


@app.command()
def delete(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="As `submit` printed them.")],
    *,
    gateway: GatewayOption,
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Have the gateway forget jobs and their answers."""
    with _client(gateway, key_file, ca) as client:
        for job in jobs:
            client.forget(job)
    if output is Output.JSON:
        print_json({"deleted": jobs})
    else:
        typer.echo(f"{len(jobs)} deleted.")


def _client(gateway: str, key_file: str, ca: Path | None) -> Client:
    token = read_secret(key_file, "--key-file") or os.environ.get("FIRSTLINE_TOKEN")
    return Client(gateway, token=token, ca_file=ca)


def _described(job: str, found: Prediction) -> dict[str, object]:
    return {"job": job} | {str(name): value for name, value in msgspec.to_builtins(found).items() if name != "answer"}
