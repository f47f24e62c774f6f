"""What request bodies may take of the memory together; of time, and each alone, see `http_body`."""

from __future__ import annotations

from typing import Self

from firstline_core.errors import QueueFullError

_RETRY_S = 1.0


class BodyBudget:
    """Bytes of bodies that are being read or answered now.

    One client's may take as much as is left free, so that room stays for the next however much one sends.

    Args:
        limit_bytes: of all together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0
        self._of_principal: dict[str, int] = {}

    def share(self, principal: str) -> Share:
        """Returns one request's share, a context manager that gives it back at the end."""
        return Share(self, principal)

    def take(self, principal: str, size_bytes: int) -> None:
        """Holds so many bytes for a client, until `give_back`; counted as they arrive, not as they are announced.

        Raises:
            QueueFullError: they do not fit.
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
        """What `take` took."""
        self._taken_bytes -= size_bytes
        left = self._of_principal.get(principal, 0) - size_bytes
        if left:
            self._of_principal[principal] = left
        else:
            self._of_principal.pop(principal, None)


class Share:
    """What one request has taken of a budget; a context manager."""

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
