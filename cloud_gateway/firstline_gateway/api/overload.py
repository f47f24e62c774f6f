"""What a request is told that the overload guard refuses unread, and how the guard tells clients apart."""

from __future__ import annotations

from collections.abc import Iterable

from firstline_core.errors import QueueFullError

OVERLOADED = QueueFullError(
    "More requests come than this gateway has room for, so this one was not read; come back later.", retry_after_s=1.0
)


def client_mark(serial: str, headers: Iterable[tuple[bytes, bytes]], proxy_header: str) -> int:
    """Returns a mark of the credentials that a request shows; nobody has verified them yet.

    Args:
        serial: of the client's certificate; "" without one.
        headers: of the request, by lower-case names.
        proxy_header: in which a proxy passes on a client's certificate; "" without a proxy.
    """
    names = (b"authorization", proxy_header.encode("ascii"))
    return hash((serial, *(value for name, value in headers if name in names)))
