"""`firstline job`: hand requests in at a gateway now, fetch their answers later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from firstline.cli.device import CaOption
from firstline.cli.output import Output, OutputOption, percent, print_json
from firstline.client import Client
from firstline.prediction import Prediction
from firstline_core.secrets_file import read_secret

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
    with _client(gateway, key_file, ca) as client:
        jobs = [{"job": client.submit_file(model, file), "file": str(file)} for file in files]
    if output is Output.JSON:
        print_json({"jobs": jobs})
        return
    for job in jobs:
        typer.echo(job["job"])


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
    """Wait for jobs, and print what came of them."""
    with _client(gateway, key_file, ca) as client:
        found = [client.result_file(job, timeout_s=timeout_s) for job in jobs]
    if output is Output.JSON:
        print_json({"results": [_described(job, each) for job, each in zip(jobs, found, strict=True)]})
        return
    for job, each in zip(jobs, found, strict=True):
        typer.echo(f"{job}: {each.label} ({percent(each.probability)})")


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
