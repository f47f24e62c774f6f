"""A gateway whose fleet connects over a broker, with a store that survives restarts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.broker import Broker
from support.gateway import gateway_settings, wait_for_gauge

from firstline_gateway.app import Gateway, open_gateway


@asynccontextmanager
async def fleet_gateway(broker: Broker, folder: Path) -> AsyncIterator[Gateway]:
    """Runs it in this process, and waits until its fleet has subscribed at the broker.

    Args:
        broker: that devices speak through.
        folder: of its store and its identity.
    """
    gateway = open_gateway(gateway_settings(folder, broker=broker, auth__mode="off"))
    await gateway.start()
    try:
        await wait_for_gauge(gateway, "firstline_gateway_fleet_mqtt_connected")
        yield gateway
    finally:
        await gateway.close()
