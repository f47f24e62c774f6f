"""Changes the desired state of devices, as an operator's or a rollout's decision does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firstline_core.fleet.twin import Desired
from firstline_gateway.app import Gateway
from firstline_gateway.fleet import devices


async def desire(gateway: Gateway, names: Sequence[str], change: Callable[[str, Desired], Desired]) -> list[str]:
    """Changes the documents, and has them published; returns the devices whose document has changed."""
    now_s = gateway.clock.wall_s()
    changed = await gateway.store.write(lambda on: devices.desire(on, names, change, now_s))
    gateway.fleet.on_desired()
    return changed
