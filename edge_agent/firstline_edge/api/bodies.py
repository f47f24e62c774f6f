"""A budget of memory for all request bodies together; a limit on each body alone lets a few callers fill a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from firstline_core.errors import QueueFullError


class BodyBudget:
    """Counts the bytes of the bodies that are being read or answered.

    Args:
        limit_bytes: for all bodies together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0

    @contextlib.contextmanager
    def taking(self) -> Iterator[Callable[[int], None]]:
        """Holds the bytes of one request until the context ends. Bytes count when they arrive, not when announced.

        Yields:
            A function that adds a number of bytes, and raises `QueueFullError` if they do not fit.
        """
        held_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal held_bytes
            if self._taken_bytes + size_bytes > self._limit_bytes:
                raise QueueFullError(
                    f"The requests under way hold {self._taken_bytes} bytes, and {self._limit_bytes} is this "
                    "agent's limit; try again, or raise api.bodies_limit_bytes.",
                    retry_after_s=1.0,
                )
            self._taken_bytes += size_bytes
            held_bytes += size_bytes

        try:
            yield take
        finally:
            self._taken_bytes -= held_bytes
