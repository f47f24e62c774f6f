"""How dear each resource is right now: battery, heat and a metered link, as factors on its prices. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.routing.account import NO_MARKUP, Cost

_DEAREST = 8.0
_EMPTY, _FULL = 0.1, 0.6  # of the battery: from here on as dear as it gets; from here on no dearer
_COOL_C = 5.0  # degrees below the limit from which on nothing is dearer


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the device found out of itself.

    Args:
        battery: charge, 0 to 1; None without a battery.
        charging: external power is there.
        heat_c: degrees Celsius by which the hottest part is above its limit (below it: negative); None if unknown.
        metered: the link in use is metered.
    """

    battery: float | None = None
    charging: bool = True
    heat_c: float | None = None
    metered: bool = False


def markup(conditions: Conditions, metered_factor: float = 4.0) -> Cost:
    """The factor on each resource's prices, at least 1.

    Joules are up to 8 times as dear the emptier a battery that is not being charged, and again up to 8 times near the
    heat limit; bytes and money `metered_factor` times over a metered link. Factors are geometric in between, so that
    each step costs the same share.
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
