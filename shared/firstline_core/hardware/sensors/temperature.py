"""Temperatures, by thermal zone (sysfs-class-thermal) and by the processors' own hwmon chips (sysfs-class-hwmon)."""

from __future__ import annotations

from firstline_core.hardware.readings import Absent
from firstline_core.hardware.tree import Found, Tree, name_of, placed

_LOW_C, _HIGH_C = -40.0, 200.0  # a sensor that is switched off says anything
# Mainboards' chips have inputs to which nothing is connected, and which read as 127 degrees: only those are taken that
# sit in a processor. Chips that are made of a thermal zone are not among them.
_CHIPS = ("coretemp", "k10temp", "zenpower", "amdgpu", "i915", "xe")

# Of a Jetson Nano: a constant that its device tree gives a zone without a sensor.
_CONSTANT = "PMIC-Die"


def temperatures_c(tree: Tree) -> dict[str, Found]:
    """Degrees Celsius, by the zone's type, or the chip and its label."""
    found: dict[str, Found] = {}
    for zone in tree.names("sys/class/thermal", "thermal_zone*"):
        name = tree.word(f"{zone}/type", name_of(zone.rpartition("/")[2]))
        constant = Absent(f"/{zone}/temp: has no sensor, and always says the same.")
        placed(found, name, constant if name == _CONSTANT else _number(tree, f"{zone}/temp"))
    for chip in tree.names("sys/class/hwmon", "hwmon*"):
        if (name := tree.word(f"{chip}/name")) in _CHIPS:
            for file in tree.names(chip, "temp*_input"):
                label = tree.word(file.replace("_input", "_label"), file.rpartition("/")[2].removesuffix("_input"))
                placed(found, name_of(f"{name} {label}"), _number(tree, file))
    return found


def _number(tree: Tree, file: str) -> Found:
    return tree.number(file, 0.001, low=_LOW_C, high=_HIGH_C)
