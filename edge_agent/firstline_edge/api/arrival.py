"""When a request really arrived: while the event loop is busy, requests wait in the kernel, and their time runs on."""

from __future__ import annotations

import socket
import sys
from typing import Any

from starlette.requests import Request

from firstline_core.clock import SYSTEM_CLOCK

_ARRIVED = "arrived_s"
_TCP_INFO = getattr(socket, "TCP_INFO", None)
# Of struct tcp_info (linux/tcp.h, fixed for ever): 8 bytes, then 32-bit numbers, of which tcpi_last_data_recv is the
# twelfth: milliseconds since data came on this connection.
_LAST_DATA = slice(52, 56)


def state_of_arrival(connection: socket.socket | None) -> dict[str, Any]:
    """What a protocol puts into the ASGI scope's `state` when a request's first bytes are read: when they came."""
    return {_ARRIVED: SYSTEM_CLOCK.monotonic_s() - _age_s(connection)}


def arrived_s(request: Request) -> float:
    """On the monotonic clock; now, where no protocol noted it."""
    found = request.scope.get("state", {}).get(_ARRIVED)
    return SYSTEM_CLOCK.monotonic_s() if found is None else float(found)


def _age_s(connection: socket.socket | None) -> float:
    """Seconds that the latest bytes waited to be read; 0 where the system does not tell."""
    if connection is None or _TCP_INFO is None:
        return 0.0
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA.stop)
    except OSError:  # no TCP, or gone already
        return 0.0
    return int.from_bytes(told[_LAST_DATA], sys.byteorder) / 1000
