"""`firstline job`: submits requests to a gateway, and fetches their answers later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions, is_there
from firstline.cli.output import Output, OutputOption, print_json, say
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.storage.files import did_you_mean_file

if TYPE_CHECKING:
    import numpy as np

    from firstline.client.results import Prediction

app = command_group("Submit requests to a gateway now, and fetch their answers later.")

JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids that `job create` printed.")]


@command(app, "create", example="firstline job create digits scan.png")
def create(
    model: Annotated[str, typer.Argument()],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    gateway: GatewayOptions,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a job for each file, and print its id once the gateway has stored it.

    Args:
        model: The bundle's name.
        files: Images or JSON files; one job each.
    """
    if absent := next((file for file in files if not is_there(file)), None):
        raise ConfigError(f"There is no file {absent}{did_you_mean_file(absent)}")
    jobs = []
    try:
        with gateway.client() as client:
            for file in files:
                jobs.append({"job": client.submit_file(model, file), "file": str(file)})
                if output is Output.TEXT:
                    say(jobs[-1]["job"])
    finally:  # those before one that is refused are stored, and run
        if output is Output.JSON:
            print_json({"jobs": jobs})


@command(app, "get", example="firstline job get 01a2019f-6dd1-704a-a261-d1635d589c27")
def get(
    jobs: JobsArgument,
    gateway: GatewayOptions,
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
                    say(error.message if job in error.message else f"{job}: {error.message}", err=True)
            else:
                results.append(_described(job, prediction))
                if output is Output.TEXT:
                    say(f"{job}: {prediction}")
    if output is Output.JSON:
        print_json({"results": results})
    if any("error" in each for each in results):
        raise typer.Exit(1)


@command(app, "delete", example="firstline job delete 01a2019f-6dd1-704a-a261-d1635d589c27")
def delete(jobs: JobsArgument, gateway: GatewayOptions) -> Report:
    """Delete jobs and their answers from the gateway."""
    with gateway.client() as client:
        for job in jobs:
            client.forget(job)
    return Report({"deleted": jobs}, f"{len(jobs)} deleted.")


def _described(job: str, prediction: Prediction) -> dict[str, object]:
    fields = msgspec.to_builtins(prediction, enc_hook=np.ndarray.tolist)
    return {"job": job} | {str(name): value for name, value in fields.items() if name != "answer"}
