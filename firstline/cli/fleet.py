"""`firstline fleet brake|lift`: limits the escalation of the whole fleet, and lifts the limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline_core.fleet.twin import Brake

app = command_group("Brake the whole fleet's escalation, and lift the brake.")


@command(app, "brake", example='firstline fleet brake --reason "the gateway is being moved" --per-hour 10')
def brake(
    gateway: GatewayOptions,
    reason: str,
    per_hour: Annotated[float, typer.Option(min=0)] = 0.0,
    hours: Annotated[float, typer.Option(min=0)] = 0.0,
) -> Report:
    """Limit the escalations per hour of every device.

    Args:
        reason: Reason that each device's status shows.
        per_hour: Rows that each device may escalate per hour.
        hours: Hours until the brake ends; 0 keeps it until `lift`.
    """
    limit = Brake(per_hour, reason, time.time() + hours * 3600 if hours else 0.0)
    return _set(gateway, limit, "braked")


@command(app, "lift", example="firstline fleet lift")
def lift(gateway: GatewayOptions) -> Report:
    """Lift the brake."""
    return _set(gateway, None, "lifted")


def _set(gateway: GatewayOptions, brake: Brake | None, word: str) -> Report:
    with gateway.fleet() as fleet:
        devices = fleet.brake(brake)
    return Report({"brake": brake, "devices": devices}, f"{word}: {counted(devices, 'device')}")
