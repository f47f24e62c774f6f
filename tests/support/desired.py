"""Changes the desired state of devices, as an operator's or a rollout's decision does."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from firstline_core.fleet.twin import Desired
from firstline_gateway.app import Gateway
from firstline_gateway.fleet import devices


async def desire(gateway: Gateway, names: Sequence[str], change: Callable[[str, Desired], Desired]) -> list[str]:
    """Changes the documents, and has them published; returns the devices whose document has changed.

    Unknown devices are accepted first.
    """

    def changed(connection: Connection) -> list[str]:
        for name in names:
            if devices.find(connection, name) is None:
                devices.accept(connection, name, gateway.clock.wall_s())
        return devices.desire(connection, names, change)

    found = await gateway.store.write(changed)
    gateway.fleet.on_desired()
    return found
