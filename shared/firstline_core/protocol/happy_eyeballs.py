"""Blocking TCP connections by Happy Eyeballs (RFC 8305): a silent address does not delay the others.

asyncio, anyio and aiohttp implement it themselves; the standard library's blocking `socket.create_connection` does not.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

DELAY_S = 0.25
"""After which the next address is tried as well (RFC 8305, section 8)."""

_AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def connect(host: str, port: int, timeout_s: float | None) -> socket.socket:
    """Returns a blocking socket that is connected to the first address of a host that accepts.

    Args:
        host: a name or an address.
        port: of the server.
        timeout_s: for all addresses together; None for no limit.

    Raises:
        TimeoutError: no address accepted in time.
        OSError: the name has no address, or every address refused.
    """
    ends_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    addresses = _interleaved(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    error = OSError(f"{host} has no address")
    with selectors.DefaultSelector() as selector:
        try:
            while addresses or selector.get_map():
                if addresses:
                    try:
                        selector.register(_started(addresses.pop(0)), selectors.EVENT_WRITE)
                    except OSError as failure:  # e.g. no route, or no IPv6 on this machine
                        error = failure
                        continue
                left_s = ends_s - time.monotonic()
                wait_s = min(DELAY_S, left_s) if addresses else left_s
                for key, _ in selector.select(None if wait_s == float("inf") else max(0.0, wait_s)):
                    connecting: Any = key.fileobj
                    selector.unregister(connecting)
                    code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not code:
                        connecting.settimeout(timeout_s)
                        return connecting  # type: ignore[no-any-return]
                    connecting.close()
                    error = OSError(code, os.strerror(code))
                if time.monotonic() >= ends_s:
                    raise TimeoutError("timed out")
        finally:
            for key in selector.get_map().values():
                losing: Any = key.fileobj
                losing.close()
    raise error


def _interleaved(found: Sequence[_AddressInfo]) -> list[_AddressInfo]:
    """Returns the addresses with alternating families, beginning with the preferred one (RFC 8305, section 4)."""
    first = [address for address in found if address[0] == found[0][0]]
    others = [address for address in found if address[0] != found[0][0]]
    return [address for address in chain.from_iterable(zip_longest(first, others)) if address is not None]


def _started(address: _AddressInfo) -> socket.socket:
    """Returns a non-blocking socket that is connecting."""
    family, kind, protocol, _, where = address
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connecting.connect(where)
    except BaseException:
        connecting.close()
        raise
    return connecting
