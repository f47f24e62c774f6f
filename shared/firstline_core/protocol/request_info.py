"""Facts about a request beyond ASGI: its sender, and its arrival at this machine.

While the event loop is busy, requests wait in the kernel, and their deadlines run on.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import MutableMapping
from typing import Any

from firstline_core.clock import SYSTEM_CLOCK

Scope = MutableMapping[str, Any]
STATE_KEY = "firstline"
"""The key of a request's `RequestInfo` in the `state` of its ASGI scope."""

_TCP_INFO = getattr(socket, "TCP_INFO", None)
# Of struct tcp_info (linux/tcp.h, a stable interface): 8 bytes, then 32-bit numbers, of which tcpi_last_data_recv is
# the twelfth: milliseconds since data arrived on this connection.
_LAST_DATA = slice(52, 56)


class RequestInfo:
    """Facts about a request beyond ASGI; `request_info` returns them.

    Attributes:
        arrived_s: when its head reached this machine, on the server's monotonic clock. The time for which it waited in
            the kernel, while the event loop was busy, counts.
        peer: see `http_server.PeerRegistry`; None without a client certificate.
        whole: whether the whole body has arrived.
        disconnected: whether the client has left.
    """

    __slots__ = ("_task", "arrived_s", "disconnected", "peer", "whole")

    def __init__(self, arrived_s: float, peer: Any = None) -> None:
        self.arrived_s = arrived_s
        self.peer = peer
        self.whole = self.disconnected = False
        self._task: asyncio.Task[Any] | None = None

    def cancel_on_disconnect(self) -> None:
        """Cancels the current task once the client has left, because its answer would not be read."""
        self._task = asyncio.current_task()
        if self.disconnected and self._task is not None:
            self._task.cancel()

    def disconnect(self) -> None:
        """Notes that the client has left."""
        self.disconnected = True
        if self._task is not None:
            self._task.cancel()


def request_info(scope: Scope) -> RequestInfo:
    """Returns the facts about a request; under another ASGI server it arrives now."""
    info = scope.get("state", {}).get(STATE_KEY)
    return info if isinstance(info, RequestInfo) else RequestInfo(SYSTEM_CLOCK.monotonic_s())


def age_s(connection: socket.socket) -> float:
    """Returns for how many seconds the latest bytes have waited to be read; 0 if the system does not know."""
    if _TCP_INFO is None:
        return 0.0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA.stop)
    except OSError:  # the connection has ended, or is a Unix socket
        return 0.0
    return int.from_bytes(info[_LAST_DATA], sys.byteorder) / 1000
