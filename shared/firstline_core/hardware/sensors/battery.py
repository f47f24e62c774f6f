"""The device's own batteries, and whether external power is there (sysfs-class-power)."""

from __future__ import annotations

from typing import NamedTuple

from firstline_core.hardware.readings import Absent, Measured, least
from firstline_core.hardware.tree import Found, Tree, placed

_FOLDER = "sys/class/power_supply"
_HIGH_W = 10_000.0


class Supply(NamedTuple):
    """What supplies the device.

    Attributes:
        battery_share: of the emptiest battery, 0 to 1.
        powered: 0 where a battery drains, beside an adapter that gives too little too; else 1 where external power is
            there or a battery says that it does not drain.
        draining_w: what each battery gives, by its name; nothing of those that do not drain.
    """

    battery_share: Found
    powered: Found
    draining_w: dict[str, Found]


def supply(tree: Tree) -> Supply:
    """Reads them all."""
    charges: list[Found] = []
    words: list[Measured] = []
    draws: list[Measured] = []
    draining: dict[str, Found] = {}
    for folder in tree.names(_FOLDER, "*"):
        name = folder.rpartition("/")[2]
        if tree.text(f"{folder}/type") != "Battery":
            online = tree.number(f"{folder}/online", low=0)  # 2 is "programmable", of USB
            words += [Measured(float(online.value > 0), online.source)] if isinstance(online, Measured) else []
        elif tree.text(f"{folder}/scope") == "Device" or tree.text(f"{folder}/present") == "0":
            continue  # a mouse's or a headset's, or an empty slot
        else:
            charges.append(_charge(tree, folder))
            status = tree.text(f"{folder}/status")
            if status in ("Charging", "Full", "Not charging", "Discharging"):
                draws.append(Measured(float(status != "Discharging"), f"/{folder}/status"))
            if status == "Discharging":
                placed(draining, name, _draining_w(tree, folder))
    none = Absent(f"/{_FOLDER}: this device has no battery.")
    powered = min(draws, key=lambda word: word.value, default=None)
    if powered is None or powered.value:
        powered = max(words + draws, key=lambda word: word.value, default=None)
    share = least(charges, none.reason)
    return Supply(
        share if isinstance(share, Measured | Absent) else none,
        powered if powered is not None else Absent(f"/{_FOLDER}: nothing says whether external power is there."),
        draining,
    )


def _charge(tree: Tree, folder: str) -> Found:
    percent = tree.number(f"{folder}/capacity", low=-1, high=200)  # worn gauges say a little more than is there
    if isinstance(percent, Absent):
        return percent
    return Measured(min(max(percent.value / 100, 0.0), 1.0), percent.source)


def _draining_w(tree: Tree, folder: str) -> Found:
    """Some drivers say watts, others amperes; some of both with a minus while it drains."""
    watts = tree.number(f"{folder}/power_now", 1e-6, low=-_HIGH_W, high=_HIGH_W)
    if isinstance(watts, Measured):
        return Measured(abs(watts.value), watts.source)
    volts, amperes = tree.number(f"{folder}/voltage_now", 1e-6), tree.number(f"{folder}/current_now", 1e-6)
    if isinstance(volts, Absent) or isinstance(amperes, Absent):
        return watts
    product = abs(volts.value * amperes.value)
    if product > _HIGH_W:
        return Absent(f"{amperes.source}: {amperes.value:g} A at {volts.value:g} V cannot be.")
    return Measured(product, amperes.source)
