"""Battery and heat, as prices look at them, from what the sensors said. Pure."""

from __future__ import annotations

from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.routing.conditions import Conditions


def conditions_of(now: Snapshot, heat_limit_c: float) -> Conditions:
    """What is measured; what there is no sensor for is not known.

    Args:
        now: the latest snapshot.
        heat_limit_c: what the hottest part should stay below.
    """
    battery, hottest_c = measured(now.battery_share), measured(now.hottest_c)
    powered = battery is None or measured(now.powered) == 1
    return Conditions(battery, powered, None if hottest_c is None else hottest_c - heat_limit_c)
