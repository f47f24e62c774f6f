"""`firstline fleet brake|lift`: limits the escalation of the whole fleet, and lifts the limit."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions
from firstline_core.fleet.twin import Brake
from firstline_core.telemetry.wording import counted

app = command_group("Brake the whole fleet's escalation, and lift the brake.")


@command(app, "brake")
def brake(
    gateway: GatewayOptions,
    reason: Annotated[str, typer.Option(help="Why; each device's status says it.")],
    per_hour: Annotated[float, typer.Option(min=0, help="Rows that each device may escalate in an hour.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0, help="Ends by itself after so long; 0 is not before `lift`.")] = 0.0,
) -> Report:
    """Hold every device to so many escalations an hour."""
    limit = Brake(per_hour, reason, time.time() + hours * 3600 if hours else 0.0)
    return _set(gateway, limit, "braked")


@command(app, "lift")
def lift(gateway: GatewayOptions) -> Report:
    """Lift the brake."""
    return _set(gateway, None, "lifted")


def _set(gateway: GatewayOptions, brake: Brake | None, word: str) -> Report:
    with gateway.fleet() as fleet:
        devices = fleet.brake(brake)
    return Report({"brake": brake, "devices": devices}, f"{word}; told: {counted(devices, 'device')}")
