"""The device's sensors with the stated costs, and their readings as conditions for prices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Snapshot, measured
from firstline_core.hardware.sensors import Sensors
from firstline_core.routing.account import Conditions
from firstline_edge.budgets.from_settings import tariff_of
from firstline_edge.settings.settings import EdgeSettings, link_names


def conditions_of(now: Snapshot, heat_limit_c: float) -> Conditions:
    """Returns the measured conditions; what no sensor measures is unknown.

    Args:
        now: the latest snapshot.
        heat_limit_c: limit of the hottest part.
    """
    battery, hottest_c = measured(now.battery_share), measured(now.hottest_c)
    powered = battery is None or measured(now.powered) == 1
    return Conditions(battery, powered, None if hottest_c is None else hottest_c - heat_limit_c)


def device_sensors(settings: EdgeSettings, queue: Callable[[], float] | None = None) -> Sensors:
    """Returns the device's sensors.

    Args:
        settings: the agent's settings; the first link's costs apply to all traffic.
        queue: number of waiting runs; None if no agent runs.
    """
    names = link_names(settings.links)
    tariff = tariff_of(settings, names)
    return Sensors(
        Tree(Path(settings.hardware.root)),
        tariff=tariff,
        link=tariff.of_link(names[0]) if names else None,
        power_rails=settings.hardware.power_rails,
        queue=queue,
    )
