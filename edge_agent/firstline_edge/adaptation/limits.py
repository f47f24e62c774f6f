"""What of heat, memory and charge must not be passed, as the settings say it."""

from __future__ import annotations

from firstline_core.adaptation.guards import Limits
from firstline_edge.settings.settings import EdgeSettings


def limits_of(settings: EdgeSettings) -> Limits:
    """For the guards."""
    section = settings.adaptation
    return Limits(
        heat_c=settings.costs.heat_limit_c,
        heat_margin_c=section.heat_margin_c,
        memory_reserve_bytes=section.memory_reserve_bytes,
        battery_empty=section.battery_empty,
        battery_full=section.battery_full,
    )
