"""Callers that wait for a promise to end: they get its answer as soon as it is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from firstline_core.types import InferResponse

Completion = asyncio.Future[InferResponse | None]


class Completions:
    """The promises that callers wait for. A caller that comes later asks the outbox instead."""

    def __init__(self) -> None:
        self._watched: dict[str, set[Completion]] = {}

    @contextlib.contextmanager
    def watch(self, request_id: str) -> Iterator[Completion]:
        """Starts to wait; look at the outbox only after that, so that no end is missed in between.

        Yields:
            A future with the final or expired answer, or None if the promise ended without any.
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
        """Wakes those who wait for this promise, with its answer."""
        for ending in self._watched.get(request_id, ()):
            if not ending.done():
                ending.set_result(final)

    def __len__(self) -> int:
        """Number of promises that callers wait for."""
        return len(self._watched)
