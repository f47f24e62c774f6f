"""What request bodies may take of the memory together: a limit for each alone lets a few callers fill a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from firstline_core.errors import QueueFullError


class BodyBudget:
    """Bytes of bodies that are being read or answered now.

    Args:
        limit_bytes: of all together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0

    @contextlib.contextmanager
    def taking(self) -> Iterator[Callable[[int], None]]:
        """One request's share, given back at the end; what it takes is counted as it arrives, not as it is announced.

        Yields:
            A function that takes so many bytes more, and raises `QueueFullError` where they do not fit.
        """
        mine_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal mine_bytes
            if self._taken_bytes + size_bytes > self._limit_bytes:
                raise QueueFullError(
                    f"The requests under way hold {self._taken_bytes} bytes, and {self._limit_bytes} is this "
                    "agent's limit; try again, or raise api.bodies_limit_bytes.",
                    retry_after_s=1.0,
                )
            self._taken_bytes += size_bytes
            mine_bytes += size_bytes

        try:
            yield take
        finally:
            self._taken_bytes -= mine_bytes
