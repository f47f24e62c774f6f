"""How a request for a profile stands, from what the device is to do and what it says. Pure."""

from __future__ import annotations

from firstline_core.fleet.profiles import ProfileRequest
from firstline_core.fleet.profiling import DesiredProfile, ProfilingState
from firstline_gateway.fleet.devices import Device

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
_SILENT_S = 900.0
"""A device reports at least so often."""


def request_of(device: Device, asked: DesiredProfile, now_s: float) -> ProfileRequest:
    """As people see it.

    Args:
        device: as the fleet knows it.
        asked: one of its `desired.profiles`.
        now_s: wall time.
    """
    reported = device.reported
    said = next((one for one in reported.profiles if one.id == asked.id), None) if reported is not None else None
    away = _away(device, now_s)
    if said is not None:
        message = said.message
        if said.state is ProfilingState.MEASURING and away:
            message = f"{away} It goes on when it is back."
        return ProfileRequest(device.name, asked, said.state, said.version, said.done, said.total, message)
    if reported is not None and reported.revision >= device.desired.revision:
        agent = f"{device.name} runs agent {reported.agent_version or 'of an unknown version'}"
        message = f"{agent}, which knows no such requests; update it, then it measures, or take the request back."
        return ProfileRequest(device.name, asked, ProfilingState.UNKNOWN, message=message)
    message = f"{away} The request stands until it comes." if away else f"{device.name} has not heard it yet."
    return ProfileRequest(device.name, asked, ProfilingState.SENT, message=message)


def _away(device: Device, now_s: float) -> str:
    """A sentence where it is, else ""."""
    if device.last_seen_s is None:
        return f"{device.name} was never heard of."
    silent_s = max(0.0, now_s - device.last_seen_s)
    if device.online and silent_s < _SILENT_S:
        return ""
    return f"{device.name} is offline: it was heard of last {_ago(silent_s)} ago."


def _ago(seconds: float) -> str:
    for unit_s, unit in ((_DAY_S, "days"), (_HOUR_S, "hours"), (_MINUTE_S, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} seconds"
