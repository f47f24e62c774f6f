"""The refusal of requests that the overload guard does not read, and the mark by which it distinguishes clients."""

from __future__ import annotations

from collections.abc import Mapping

from firstline_core.errors import QueueFullError

OVERLOADED = QueueFullError(
    "More requests come than this gateway has room for, so this one was not read; come back later.", retry_after_s=1.0
)


def client_mark(serial: str, headers: Mapping[str, str], proxy_header: str) -> int:
    """Returns a mark of the credentials of a request, which are not verified yet.

    Args:
        serial: of the client's certificate; "" without one.
        headers: of the request, by lower-case names.
        proxy_header: in which a proxy passes on a client's certificate; "" without a proxy.
    """
    return hash((serial, headers.get("authorization"), headers.get(proxy_header) if proxy_header else None))
