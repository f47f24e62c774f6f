"""Who waits for a promise to end: told in the moment that its answer is on the disk, without a look at the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from firstline_core.types import InferResponse

Completion = asyncio.Future[InferResponse | None]


class Completions:
    """The promises whose end somebody waits for. Nothing is kept for those who come later: they ask the outbox."""

    def __init__(self) -> None:
        self._watched: dict[str, set[Completion]] = {}

    @contextlib.contextmanager
    def watch(self, request_id: str) -> Iterator[Completion]:
        """Waits from here on; look at the outbox only then, so that no end is missed in between.

        Yields:
            What will hold the final or expired answer, or None where the promise ended without any.
        """
        ending: Completion = asyncio.get_running_loop().create_future()
        watching = self._watched.setdefault(request_id, set())
        watching.add(ending)
        try:
            yield ending
        finally:
            watching.discard(ending)
            if not watching:
                self._watched.pop(request_id, None)

    def tell(self, request_id: str, final: InferResponse | None) -> None:
        """The promise ended, with this answer."""
        for ending in self._watched.get(request_id, ()):
            if not ending.done():
                ending.set_result(final)

    def __len__(self) -> int:
        """Promises that are watched."""
        return len(self._watched)
