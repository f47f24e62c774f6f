"""Where power comes from or is measured, and where temperature is, as far as files say what they are."""

from __future__ import annotations

from firstline_core.hardware.catalogue import MOST, PowerSource, ThermalZone
from firstline_core.hardware.readings import Measured
from firstline_core.hardware.sensors.rails import rails_w
from firstline_core.hardware.tree import Tree, name_of

_KINDS = {"Battery": "battery", "Mains": "mains", "USB": "usb", "UPS": "battery", "Wireless": "usb"}
_TRIPS = {"passive": "passive_c", "critical": "critical_c"}


def power_sources(tree: Tree) -> tuple[PowerSource, ...]:
    """Supplies, rails and domains."""
    found = []
    for folder in tree.names("sys/class/power_supply", "*"):
        if tree.text(f"{folder}/scope") != "Device":
            kind = _KINDS.get(tree.word(f"{folder}/type"), "other")
            measures = tree.has(f"{folder}/power_now") or tree.has(f"{folder}/current_now")
            found.append(PowerSource(name_of(folder.rpartition("/")[2]), kind, measures))
    found += [PowerSource(name, "rail", isinstance(reading, Measured)) for name, reading in rails_w(tree).items()]
    for folder in tree.names("sys/class/powercap", "intel-rapl:*"):
        readable = isinstance(tree.number(f"{folder}/energy_uj", low=0), Measured)
        found.append(PowerSource(tree.word(f"{folder}/name", "rapl"), "rapl", readable))
    return tuple(found[:MOST])


def thermal_zones(tree: Tree) -> tuple[ThermalZone, ...]:
    """All of them, with the temperatures from which on the kernel throttles, and switches off."""
    found = []
    for zone in tree.names("sys/class/thermal", "thermal_zone*"):
        trips: dict[str, float] = {}
        for file in tree.names(zone, "trip_point_*_type"):
            which = _TRIPS.get(tree.word(file))
            at = tree.number(file.replace("_type", "_temp"), 0.001, low=0, high=200)
            if which is not None and isinstance(at, Measured):
                trips[which] = min(at.value, trips.get(which, at.value))
        found.append(ThermalZone(tree.word(f"{zone}/type", name_of(zone.rpartition("/")[2])), **trips))
    return tuple(found)
