"""`firstline webhook`: the gateway's webhooks and their test."""

from __future__ import annotations

from typing import Annotated

import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group
from firstline.cli.options import GatewayOptions, check_name
from firstline.cli.output import table

app = command_group("List and test the webhooks in a gateway's settings.")


@command(app, "list", example="firstline webhook list")
def list_webhooks(gateway: GatewayOptions) -> Report:
    """List webhooks, with the reason if the latest message was not delivered."""
    with gateway.fleet() as fleet:
        webhooks = fleet.webhooks()
    rows = ((each.name, each.problem or ("delivers" if each.delivered else "nothing sent yet")) for each in webhooks)
    return Report(webhooks, table("webhook", "state", rows=rows))


@command(app, "test", example="firstline webhook test operations")
def test_webhook(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name in the gateway's settings.")],
    gateway: GatewayOptions,
) -> Report:
    """Send a signed test message to a webhook at once; exits 1 if the receiver does not accept it."""
    check_name(name, "The webhook's name")
    with gateway.fleet() as fleet:
        found = fleet.test_webhook(name)
    if found.problem:
        text = (
            f"{name} did not accept the test message: {found.problem}, after {found.latency_ms:.0f} ms. {found.remedy}"
        )
        return Report(found, text, EXIT_FAILED)
    return Report(found, f"{name} accepted the test message with status {found.status} in {found.latency_ms:.0f} ms.")
