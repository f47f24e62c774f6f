"""When bytes really arrived: while the event loop is busy they wait in the kernel, and their time runs on."""

from __future__ import annotations

import socket
import sys

_TCP_INFO = getattr(socket, "TCP_INFO", None)
# Of struct tcp_info (linux/tcp.h, fixed for ever): 8 bytes, then 32-bit numbers, of which tcpi_last_data_recv is the
# twelfth: milliseconds since data came on this connection.
_LAST_DATA = slice(52, 56)


def tells_age(connection: socket.socket) -> bool:
    """Whether the system knows when bytes came on a connection: of TCP's on Linux."""
    return _TCP_INFO is not None and connection.family in (socket.AF_INET, socket.AF_INET6)


def age_s(connection: socket.socket) -> float:
    """Seconds that the latest bytes waited to be read; 0 where the system does not tell."""
    if _TCP_INFO is None:
        return 0.0
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA.stop)
    except OSError:  # no TCP, or gone already
        return 0.0
    return int.from_bytes(told[_LAST_DATA], sys.byteorder) / 1000
