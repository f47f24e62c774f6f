"""Power that chips on the board measure, by rail: hwmon's INA2xx and INA3221, and whatever chip says watts by itself.

A Jetson of JetPack 4 has its INA3221 as an industrial I/O device, with files of its own.
"""

from __future__ import annotations

from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import Found, Tree, name_of, placed

_HIGH_W = 10_000.0
_SWITCHED_OFF = "0"


def rails_w(tree: Tree) -> dict[str, Found]:
    """Watts, by the rail's label, or the chip's name and channel. Rails nest: an input feeds all the others."""
    found: dict[str, Found] = {}
    for chip in tree.names("sys/class/hwmon", "hwmon*"):
        name = tree.word(f"{chip}/name", "hwmon")
        powers = tree.names(chip, "power*_input") or tree.names(chip, "power*_average")
        for file in powers:
            channel = file.rpartition("/")[2].partition("_")[0]
            label = tree.word(f"{chip}/{channel}_label") or tree.word(f"{chip}/label") or f"{name} {channel}"
            placed(found, name_of(label), tree.number(file, 1e-6, low=0, high=_HIGH_W))
        # Volts and amperes of one channel belong together in these chips alone.
        if name.startswith("ina") and not powers:
            _channels(tree, chip, name, found)
    for device in _industrial(tree):
        for file in tree.names(device, "in_power*_input"):
            channel = file.rpartition("/")[2].removeprefix("in_power").removesuffix("_input")
            label = tree.word(f"{device}/rail_name_{channel}", f"ina3221x {channel}")
            placed(found, label, tree.number(file, 1e-3, low=0, high=_HIGH_W))
    return found


def _channels(tree: Tree, chip: str, name: str, found: dict[str, Found]) -> None:
    for file in tree.names(chip, "curr[123]_input"):
        number = file.rpartition("/")[2].removeprefix("curr").removesuffix("_input")
        if tree.text(f"{chip}/in{number}_enable") == _SWITCHED_OFF:
            continue
        label = tree.word(f"{chip}/in{number}_label", f"{name} {number}")
        placed(found, label, _product(tree.number(f"{chip}/in{number}_input", 1e-3), tree.number(file, 1e-3)))


def _product(volts: Found, amperes: Found) -> Found:
    if isinstance(volts, Absent):
        return volts
    if isinstance(amperes, Absent):
        return amperes
    watts = volts.value * amperes.value
    if not 0 <= watts <= _HIGH_W:
        return Absent(f"{amperes.source}: {amperes.value:g} A at {volts.value:g} V cannot be.")
    return Measured(watts, amperes.source)


def _industrial(tree: Tree) -> list[str]:
    chips = tree.names("sys/bus/i2c/drivers/ina3221x", "*-*")
    return [device for chip in chips for device in tree.names(chip, "iio:device*")]
