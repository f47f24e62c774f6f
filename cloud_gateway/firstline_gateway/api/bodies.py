"""What request bodies may take of memory and time: a slow client or a huge body costs only itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator

from firstline_core.errors import QueueFullError, RemoteTimeoutError

# A body may take so long, and longer by what came of it: the slowest mobile links carry more.
GRACE_S = 20.0
LEAST_BYTES_PER_S = 1024
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
        self._of_principal: Counter[str] = Counter()

    @contextlib.contextmanager
    def share(self, principal: str) -> Iterator[Callable[[AsyncIterable[bytes]], AsyncIterator[bytes]]]:
        """One request's share, given back at the end; what it takes is counted as it arrives, not as it is announced.

        Yields:
            A function that counts the chunks of a body. Its iterator raises `QueueFullError` where they do not fit, and
            `RemoteTimeoutError` where they come too slowly.
        """
        mine_bytes = 0

        async def counted(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
            nonlocal mine_bytes
            async for chunk in in_time(chunks):
                if self._of_principal[principal] + len(chunk) > self._limit_bytes - self._taken_bytes - len(chunk):
                    raise QueueFullError(
                        f"Your requests under way hold {self._of_principal[principal]} bytes, and "
                        f"{self._limit_bytes - self._taken_bytes} are free on this gateway; come back later.",
                        retry_after_s=_RETRY_S,
                    )
                self._taken_bytes += len(chunk)
                self._of_principal[principal] += len(chunk)
                mine_bytes += len(chunk)
                yield chunk

        try:
            yield counted
        finally:
            self._taken_bytes -= mine_bytes
            self._of_principal[principal] -= mine_bytes
            if not self._of_principal[principal]:
                del self._of_principal[principal]


async def in_time(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """A body's chunks.

    Raises:
        RemoteTimeoutError: they come too slowly.
    """
    received_bytes = 0
    start_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(start_s + GRACE_S) as patience:
            async for chunk in chunks:
                received_bytes += len(chunk)
                patience.reschedule(start_s + GRACE_S + received_bytes / LEAST_BYTES_PER_S)
                yield chunk
    except TimeoutError as error:
        raise RemoteTimeoutError(
            f"Only {received_bytes} bytes of the body came in time; send at least {LEAST_BYTES_PER_S} bytes a second."
        ) from error
