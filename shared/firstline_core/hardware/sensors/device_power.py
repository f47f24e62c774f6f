"""What the whole device draws: measured where something measures just that, else modelled from stated costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading, Readings
from firstline_core.hardware.sensors.traffic import Rates
from firstline_core.routing.tariff import LinkTariff, Tariff

INPUT_RAILS = ("VDD_IN", "POM_5V_IN", "5V_IN", "psys")
"""Rails and domains through which all power comes, as the boards that have them name them: Jetson Orin Nano and NX,
Jetson Nano, Jetson Xavier NX, and Intel's RAPL domain of the whole platform."""


def device_power_w(
    power_w: Readings,
    busy_cores: Reading,
    rates: Rates,
    *,
    tariff: Tariff,
    link: LinkTariff,
    stated: Sequence[str] = (),
) -> Reading:
    """Watts of the whole device.

    Args:
        power_w: what single rails, domains and draining batteries draw, by name.
        busy_cores: of the whole machine.
        rates: of its traffic.
        tariff: stated costs.
        link: what the traffic's bytes take.
        stated: names in `power_w` that together are the device, as its owner says; none for those known here.
    """
    if stated:
        return _sum(power_w, stated)
    for rail in INPUT_RAILS:
        found = power_w.get(rail)
        if isinstance(found, Measured):
            return found
    batteries = [name for name in power_w if name.startswith("battery ")]
    if batteries:
        return _sum(power_w, batteries)
    if not tariff.joules_per_core_s:
        return Absent("Nothing here measures the device's power, and [costs] does not state joules_per_core_second.")
    if not isinstance(busy_cores, Measured):
        return busy_cores
    watts = tariff.power_w(busy_cores.value, link.cost(rates.sent, rates.received).joules)
    return Modelled(watts, f"[costs], with the cores' load of {busy_cores.source}")


def _sum(power_w: Readings, names: Sequence[str]) -> Reading:
    watts, sources = 0.0, []
    for name in names:
        found = power_w.get(name, Absent(f"There is no rail {name!a} here; there are: {', '.join(power_w) or 'none'}."))
        if not isinstance(found, Measured):
            return found
        watts += found.value
        sources.append(found.source)
    return Measured(watts, " + ".join(sources))
