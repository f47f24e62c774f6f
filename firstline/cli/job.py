"""`firstline job`: submits requests to a gateway, and fetches their answers later."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import CaOption
from firstline.cli.output import Output, OutputOption, print_json
from firstline.client.results import Prediction
from firstline.client.sync_client import Client
from firstline_core.errors import FirstlineError
from firstline_core.storage.secrets import read_secret

app = command_group("Submit requests to a gateway now, and fetch their answers later.")

JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids that `job create` printed.")]


@dataclass(frozen=True, slots=True)
class JobGateway:
    """The gateway that runs the jobs."""

    url: Annotated[
        str, typer.Option("--gateway", metavar="URL", help="URL of the gateway, such as https://gateway.example.com.")
    ]
    key_file: Annotated[
        str, typer.Option(metavar="FILE", help="File with an API key with the scope infer; default: FIRSTLINE_TOKEN.")
    ] = ""
    ca_file: CaOption = None

    def client(self) -> Client:
        token = read_secret(self.key_file, "--key-file") or os.environ.get("FIRSTLINE_TOKEN")
        return Client(self.url, token=token, ca_file=self.ca_file)


@command(app, "create")
def create(
    model: Annotated[str, typer.Argument(help="The bundle's name.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Images or JSON files; one job each.")],
    gateway: JobGateway,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a job for each file, and print its id once the gateway has stored it."""
    jobs = []
    try:
        with gateway.client() as client:
            for file in files:
                jobs.append({"job": client.submit_file(model, file), "file": str(file)})
                if output is Output.TEXT:
                    typer.echo(jobs[-1]["job"])
    finally:  # those before one that is refused are stored, and run
        if output is Output.JSON:
            print_json({"jobs": jobs})


@command(app, "get")
def get(
    jobs: JobsArgument,
    gateway: JobGateway,
    timeout_s: Annotated[float, typer.Option(min=0, help="How long to wait for each (seconds).")] = 30.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Wait for jobs, and print their results; the exit code is 1 if a job has no result."""
    results: list[dict[str, object]] = []
    with gateway.client() as client:
        for job in jobs:
            try:
                prediction = client.result_file(job, timeout_s=timeout_s)
            except FirstlineError as error:
                results.append({"job": job, "error": error.message, "code": error.code})
                if output is Output.TEXT:
                    typer.echo(f"{job}: {error.message}", err=True)
            else:
                results.append(_described(job, prediction))
                if output is Output.TEXT:
                    typer.echo(f"{job}: {prediction}")
    if output is Output.JSON:
        print_json({"results": results})
    if any("error" in each for each in results):
        raise typer.Exit(1)


@command(app, "delete")
def delete(jobs: JobsArgument, gateway: JobGateway) -> Report:
    """Delete jobs and their answers from the gateway."""
    with gateway.client() as client:
        for job in jobs:
            client.forget(job)
    return Report({"deleted": jobs}, f"{len(jobs)} deleted.")


def _described(job: str, prediction: Prediction) -> dict[str, object]:
    fields = msgspec.to_builtins(prediction, enc_hook=np.ndarray.tolist)
    return {"job": job} | {str(name): value for name, value in fields.items() if name != "answer"}
