"""The refusal of requests that the overload guard does not read, and the mark by which it distinguishes clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

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


_RETRY_S = 1.0


class BodyBudget:
    """Counts the bytes of the bodies that are being read or answered.

    One client may hold at most as many bytes as are left free, so that there is always room for another client.

    Args:
        limit_bytes: for all bodies together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0
        self._of_principal: dict[str, int] = {}

    def share(self, principal: str) -> Share:
        """Returns one request's share, a context manager that gives it back at the end."""
        return Share(self, principal)

    def take(self, principal: str, size_bytes: int) -> None:
        """Holds bytes for a client until `give_back`. Bytes count when they arrive, not when announced.

        Raises:
            QueueFullError: the bytes do not fit.
        """
        mine = self._of_principal.get(principal, 0)
        if mine + size_bytes > self._limit_bytes - self._taken_bytes - size_bytes:
            raise QueueFullError(
                f"Your requests under way hold {mine} bytes, and "
                f"{self._limit_bytes - self._taken_bytes} are free on this gateway; come back later.",
                retry_after_s=_RETRY_S,
            )
        self._taken_bytes += size_bytes
        self._of_principal[principal] = mine + size_bytes

    def give_back(self, principal: str, size_bytes: int) -> None:
        """Returns bytes that `take` holds."""
        self._taken_bytes -= size_bytes
        left = self._of_principal.get(principal, 0) - size_bytes
        if left:
            self._of_principal[principal] = left
        else:
            self._of_principal.pop(principal, None)


class Share:
    """The bytes of one request; a context manager that returns them."""

    def __init__(self, budget: BodyBudget, principal: str) -> None:
        self._budget = budget
        self._principal = principal
        self._size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._size_bytes:
            self._budget.give_back(self._principal, self._size_bytes)

    def take(self, size_bytes: int) -> None:
        """Takes more bytes; see `BodyBudget.take`."""
        self._budget.take(self._principal, size_bytes)
        self._size_bytes += size_bytes
