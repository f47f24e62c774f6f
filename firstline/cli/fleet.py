"""`firstline fleet`: brake the whole fleet's escalation, and lift the brake."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption, fleet_at
from firstline.cli.output import Output, OutputOption, print_json
from firstline_core.fleet.twin import Brake
from firstline_core.telemetry.wording import counted

app = typer.Typer(help="Brake the whole fleet's escalation, and lift the brake.", no_args_is_help=True)


@app.command()
def brake(
    *,
    reason: Annotated[str, typer.Option(help="Why; each device's status says it.")],
    per_hour: Annotated[float, typer.Option(min=0, help="Rows that each device may escalate in an hour.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0, help="Ends by itself after so long; 0 is not before `lift`.")] = 0.0,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Hold every device to so many escalations an hour."""
    wanted = Brake(per_hour, reason, time.time() + hours * 3600 if hours else 0.0)
    with fleet_at(gateway, key_file, ca) as fleet:
        devices = fleet.brake(wanted)
    _say({"brake": wanted, "devices": devices}, f"braked; told: {counted(devices, 'device')}", output)


@app.command()
def lift(
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Lift the brake."""
    with fleet_at(gateway, key_file, ca) as fleet:
        devices = fleet.brake(None)
    _say({"brake": None, "devices": devices}, f"lifted; told: {counted(devices, 'device')}", output)


def _say(value: object, sentence: str, output: Output) -> None:
    if output is Output.JSON:
        print_json(value)
    else:
        typer.echo(sentence)
