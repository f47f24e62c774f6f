"""What the device finds out about itself: battery and heat, from where Linux tells them."""

from __future__ import annotations

import math
from pathlib import Path

from firstline_core.routing.conditions import Conditions

POWER_SUPPLY = Path("/sys/class/power_supply")
THERMAL = Path("/sys/class/thermal")

_PLAUSIBLE_C = (-40.0, 200.0)  # a sensor that is switched off says anything


class Sensors:
    """Reads the files anew each time, which may take milliseconds: not for the hot path.

    Args:
        heat_limit_c: what the hottest part should stay below.
        power_supply, thermal: as described in the kernel's sysfs-class-power and sysfs-class-thermal.
    """

    def __init__(self, heat_limit_c: float, power_supply: Path = POWER_SUPPLY, thermal: Path = THERMAL) -> None:
        self._heat_limit_c = heat_limit_c
        self._power_supply = power_supply
        self._thermal = thermal

    def read(self) -> Conditions:
        """Battery and heat now; what there is no sensor for is not known."""
        battery, charging = self._battery()
        hottest_c = self._hottest_c()
        return Conditions(battery, charging, None if hottest_c is None else hottest_c - self._heat_limit_c)

    def _battery(self) -> tuple[float | None, bool]:
        """The emptiest of the device's own batteries, and whether external power is there."""
        charges: list[float] = []
        powered = False
        for supply in _folders(self._power_supply, "*"):
            if _said(supply / "type") != "Battery":
                powered |= _said(supply / "online") == "1"
            elif _said(supply / "scope") == "Device" or _said(supply / "present") == "0":
                continue  # a mouse's or a headset's, or an empty slot
            elif (charge := _number(supply / "capacity")) is not None:
                charges.append(min(max(charge / 100, 0.0), 1.0))
                powered |= _said(supply / "status") in ("Charging", "Full", "Not charging")
        return (min(charges), powered) if charges else (None, True)

    def _hottest_c(self) -> float | None:
        lowest, highest = _PLAUSIBLE_C
        read = [_number(zone / "temp") for zone in _folders(self._thermal, "thermal_zone*")]
        found = [milli / 1000 for milli in read if milli is not None and lowest < milli / 1000 < highest]
        return max(found, default=None)


def _folders(where: Path, pattern: str) -> list[Path]:
    try:
        return sorted(where.glob(pattern))
    except OSError:
        return []


def _said(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):  # no such property, or a driver that refuses
        return ""


def _number(file: Path) -> float | None:
    try:
        number = float(_said(file))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
