"""The link to the gateway for a plan: as stated, else as the running agent has measured it recently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstline_core.errors import ConfigError
from firstline_core.planning.plan import Link
from firstline_edge.cli.status import UnreachableError, running
from firstline_edge.settings.settings import EdgeSettings

_MBIT = 1e6 / 8


def known(
    bandwidth_mbit_s: float | None, round_trip_ms: float | None, settings: EdgeSettings
) -> tuple[Link, list[str]]:
    """Returns the link, and sentences about the source of figures that were not stated.

    Args:
        bandwidth_mbit_s: as stated; None to ask the running agent.
        round_trip_ms: likewise.
        settings: the agent's.
    """
    bytes_per_s = None if bandwidth_mbit_s is None else bandwidth_mbit_s * _MBIT
    stated = Link(bytes_per_s, round_trip_ms)
    if bytes_per_s is not None and round_trip_ms is not None:
        return stated, []
    try:
        status = running(settings)[1]
    except (UnreachableError, ConfigError):
        return stated, ["No agent of this configuration answers that has measured its link recently."]
    return measured(stated, status)


def measured(stated: Link, status: Mapping[str, Any]) -> tuple[Link, list[str]]:
    """Fills in unstated figures from the first link of the running agent that has measured them.

    Args:
        stated: the stated figures, which stay unchanged.
        status: the agent's.
    """
    timings = {name: link.get("timing") for name, link in status.get("links", {}).items()}
    name, timing = next(((name, found) for name, found in timings.items() if found), ("", None))
    if timing is None:
        return stated, ["The running agent has sent nothing recently, so it has not measured its link."]
    bytes_per_s, round_trip_ms, notes = stated.bytes_per_s, stated.round_trip_ms, []
    at_rest_ms, rate = timing.get("round_trip_ms"), timing.get("bytes_per_s")
    if round_trip_ms is None:
        round_trip_ms = at_rest_ms
        what = "what a payload of no size would take"
        if round_trip_ms is None:
            round_trip_ms, what = timing.get("network_p50_ms"), f"that of payloads of {timing['typical_bytes']} bytes"
        if round_trip_ms is None:
            notes.append(f"The gateway does not say what of '{name}' is its own time, so the round trip is not known.")
        else:
            notes.append(
                f"The round trip, {round_trip_ms:.3g} ms, was measured by the running agent over '{name}': {what}."
            )
    if bytes_per_s is None:
        bytes_per_s = rate
        if bytes_per_s is None:
            notes.append(f"Payloads over '{name}' were recently of much the same size, which shows no bandwidth.")
        else:
            mbit_s = bytes_per_s / _MBIT
            notes.append(f"The bandwidth, {mbit_s:.3g} Mbit/s, was measured by the running agent over '{name}'.")
    return Link(bytes_per_s, round_trip_ms), notes
