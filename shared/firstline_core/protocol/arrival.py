"""When bytes reached this machine: while the event loop is busy they wait in the kernel, and deadlines run on."""

from __future__ import annotations

import socket
import sys

_TCP_INFO = getattr(socket, "TCP_INFO", None)
# Of struct tcp_info (linux/tcp.h, a stable interface): 8 bytes, then 32-bit numbers, of which tcpi_last_data_recv is
# the twelfth: milliseconds since data arrived on this connection.
_LAST_DATA = slice(52, 56)


def age_s(connection: socket.socket) -> float:
    """Returns for how many seconds the latest bytes have waited to be read; 0 if the system does not know."""
    if _TCP_INFO is None:
        return 0.0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA.stop)
    except OSError:  # the connection has ended, or is a Unix socket
        return 0.0
    return int.from_bytes(info[_LAST_DATA], sys.byteorder) / 1000
