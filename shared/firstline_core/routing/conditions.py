"""Price factors of the resources by battery, heat and a metered link. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.routing.account import NO_MARKUP, Cost

_DEAREST = 8.0
_EMPTY, _FULL = 0.1, 0.6  # battery charge at or below which the factor is largest, and at or above which it is 1
_COOL_C = 5.0  # degrees below the limit at which the factor becomes 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """The measured conditions of the device.

    Args:
        battery: charge, 0 to 1; None without a battery.
        charging: whether external power is connected.
        heat_c: temperature of the hottest part relative to its limit (degrees Celsius, negative below); None if
            unknown.
        metered: whether the link in use is metered.
    """

    battery: float | None = None
    charging: bool = True
    heat_c: float | None = None
    metered: bool = False


def markup(conditions: Conditions, metered_factor: float = 4.0) -> Cost:
    """Returns the price factor of each resource, at least 1.

    The factor of energy rises to 8 with an emptying battery, and again by up to 8 near the heat limit; bytes and money
    cost `metered_factor` times as much over a metered link. Factors are interpolated geometrically.
    """
    if conditions == Conditions():
        return NO_MARKUP
    joules = 1.0
    if conditions.battery is not None and not conditions.charging:
        joules *= _between((_FULL - conditions.battery) / (_FULL - _EMPTY))
    if conditions.heat_c is not None:
        joules *= _between((conditions.heat_c + _COOL_C) / _COOL_C)
    metered = metered_factor if conditions.metered else 1.0
    return Cost(metered, joules, metered)


def _between(share: float) -> float:
    return float(_DEAREST ** min(max(share, 0.0), 1.0))
