"""What a plan takes for the way to the gateway: as stated, else as the running agent has it of late."""

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
    """The link, and where its figures come from that nobody stated, in sentences.

    Args:
        bandwidth_mbit_s: as stated; None where the running agent is to be asked.
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
        return stated, ["No agent of this configuration answers that could tell how its link is of late."]
    return measured(stated, status)


def measured(stated: Link, status: Mapping[str, Any]) -> tuple[Link, list[str]]:
    """What is not stated, by the running agent's first link that knows.

    Args:
        stated: what is; nothing of it is changed.
        status: the agent's.
    """
    timings = {name: link.get("timing") for name, link in status.get("links", {}).items()}
    name, timing = next(((name, found) for name, found in timings.items() if found), ("", None))
    if timing is None:
        return stated, ["The running agent has sent nothing of late, so that it cannot tell how its link is."]
    bytes_per_s, round_trip_ms, said = stated.bytes_per_s, stated.round_trip_ms, []
    at_rest_ms, rate = timing.get("round_trip_ms"), timing.get("bytes_per_s")
    if round_trip_ms is None:
        round_trip_ms = at_rest_ms
        told = "what a payload of no size would take"
        if round_trip_ms is None:
            round_trip_ms, told = timing.get("network_p50_ms"), f"that of payloads of {timing['typical_bytes']} bytes"
        if round_trip_ms is None:
            said.append(f"The gateway does not say what of '{name}' is its own time, so the round trip is not known.")
        else:
            said.append(
                f"The round trip, {round_trip_ms:.3g} ms, is the running agent's of late over '{name}': {told}."
            )
    if bytes_per_s is None:
        bytes_per_s = rate
        if bytes_per_s is None:
            said.append(f"Payloads over '{name}' were of much the same size of late, which tells no bandwidth.")
        else:
            mbit_s = bytes_per_s / _MBIT
            said.append(f"The bandwidth, {mbit_s:.3g} Mbit/s, is the running agent's of late over '{name}'.")
    return Link(bytes_per_s, round_trip_ms), said
