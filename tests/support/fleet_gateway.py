"""A gateway whose fleet connects over a broker, with a store that survives restarts; and waits for what it knows."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from support.broker import Broker
from support.gateway import gateway_settings, wait_for_gauge
from support.waiting import until

from firstline_core.errors import NotFoundError
from firstline_core.fleet.rest import FleetDevice
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


async def device_with(
    gateway: Gateway, name: str = "device-1", holds: Callable[[FleetDevice], bool] = lambda _: True
) -> FleetDevice:
    """Waits until the gateway has a report of the device, and the device is in this condition."""
    found: list[FleetDevice] = []

    async def known() -> bool:
        with suppress(NotFoundError):
            found[:] = [await gateway.fleet.device(name)]
        return bool(found) and found[0].reported is not None and holds(found[0])

    await until(known)
    return found[0]


async def all_published(gateway: Gateway, *refused: str) -> None:
    """Waits until the broker has the desired state of each device but those of which it refuses the topic."""

    async def published() -> bool:
        return [name for name, _ in await gateway.fleet.unpublished(10)] == list(refused)

    await until(published)
