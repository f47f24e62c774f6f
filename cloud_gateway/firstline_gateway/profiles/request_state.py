"""How a request for a profile stands, from what was asked and what the device says. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from firstline_core.fleet.profiles import ProfileRequest
from firstline_core.fleet.twin import Profiling, ProfilingState
from firstline_gateway.fleet.devices import Device
from firstline_gateway.profiles.request_records import RequestRecord

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
_SILENT_S = 900.0
"""A device reports at least so often."""


def request_of(device: Device, asked: RequestRecord, now_s: float) -> ProfileRequest:
    """As people see it.

    Args:
        device: as the fleet knows it.
        asked: one of its requests.
        now_s: wall time.
    """
    said = _said(device, asked)
    state, message = _standing(device, asked, said, now_s)
    version, done, total = (said.version, said.done, said.total) if said is not None else (0, 0, 0)
    return ProfileRequest(
        device.name,
        asked.wanted,
        state,
        asked.version or version,
        done,
        total,
        message,
        by=asked.by,
        asked_s=asked.asked_s,
        until_s=asked.until_s,
    )


def why_not(device: Device, asked: RequestRecord, now_s: float) -> str:
    """Why a request was not fulfilled by now, as far as that is known; a sentence or ""."""
    said = _said(device, asked)
    if _knows_none(device, asked):
        return _old_agent(device)
    return (said.message if said is not None else "") or _away(device, now_s)


def _standing(device: Device, asked: RequestRecord, said: Profiling | None, now_s: float) -> tuple[ProfilingState, str]:
    if asked.brought_s is not None:
        return ProfilingState.DONE, ""
    if asked.has_expired(now_s):
        why = asked.why if asked.ended_s is not None else why_not(device, asked, now_s)
        over = f"The request of {_moment(asked.asked_s)} ended on {_moment(asked.until_s)}; ask again."
        return ProfilingState.EXPIRED, f"{over} {why}".rstrip()
    away = _away(device, now_s)
    if said is not None:
        waits = said.state is ProfilingState.MEASURING and away
        return said.state, f"{away} It goes on when it is back." if waits else said.message
    if _knows_none(device, asked):
        return ProfilingState.UNKNOWN, f"{_old_agent(device)} Update it, then it measures, or take the request back."
    stands = f"The request stands until it comes, or until {_moment(asked.until_s)}."
    return ProfilingState.SENT, f"{away} {stands}" if away else f"{device.name} has not heard it yet."


def _said(device: Device, asked: RequestRecord) -> Profiling | None:
    reported = device.reported
    return next((one for one in reported.profiles if one.id == asked.wanted.id), None) if reported is not None else None


def _knows_none(device: Device, asked: RequestRecord) -> bool:
    """Whether its agent has heard the request, and understood nothing."""
    reported = device.reported
    return reported is not None and reported.revision >= device.desired.revision and _said(device, asked) is None


def _old_agent(device: Device) -> str:
    version = device.reported.agent_version if device.reported is not None else ""
    return f"{device.name} runs agent {version or 'of an unknown version'}, which knows no such requests."


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


def _moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
