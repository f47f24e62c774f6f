"""Single flight: equal work that is asked for at the same moment is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from firstline_core.errors import FirstlineError

V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class _Flight(Generic[V]):
    """One computation of several keys; `position` is this key's among its results."""

    task: asyncio.Task[Sequence[V]]
    position: int


class SingleFlight(Generic[V]):
    """Computes every key once at a time; several keys may travel in one computation.

    A computation belongs to nobody: the caller who started it may be cancelled, and those who joined still get
    their values. Failures are not kept.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, _Flight[V]] = {}
        self._tasks: set[asyncio.Task[Sequence[V]]] = set()

    def __contains__(self, key: object) -> bool:
        """Whether somebody computes it now."""
        return key in self._flights

    async def run(self, keys: Sequence[bytes], compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]]) -> list[V]:
        """One value for each key, in order.

        Args:
            keys: may repeat.
            compute: is given positions in `keys` that nobody computes yet, each distinct key once, and returns
                one value for each.

        Raises:
            FirstlineError: what `compute` raised. When another caller's computation fails, which may have had
                less time or a bad neighbour in its batch, this caller computes for itself before giving up.
        """
        flights, own = self._board(keys, compute)
        if own is not None:
            await asyncio.shield(own)
        failed = await _failed(flights)
        again = [position for position, flight in enumerate(flights) if flight.task in failed]
        if again:  # what landed well is not computed twice

            async def compute_again(seats: Sequence[int]) -> Sequence[V]:
                return await compute([again[seat] for seat in seats])

            second, _ = self._board([keys[position] for position in again], compute_again)
            for position, flight in zip(again, second, strict=True):
                await asyncio.shield(flight.task)
                flights[position] = flight
        return [flight.task.result()[flight.position] for flight in flights]

    async def close(self) -> None:
        """Cancels what still flies."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _board(
        self, keys: Sequence[bytes], compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]]
    ) -> tuple[list[_Flight[V]], asyncio.Task[Sequence[V]] | None]:
        new: dict[bytes, int] = {}
        for position, key in enumerate(keys):
            if key not in self._flights:
                new.setdefault(key, position)
        own = self._start(new, compute) if new else None
        return [self._flights[key] for key in keys], own

    def _start(
        self, new: dict[bytes, int], compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]]
    ) -> asyncio.Task[Sequence[V]]:
        async def fly() -> Sequence[V]:
            return await compute(list(new.values()))

        task = asyncio.get_running_loop().create_task(fly())
        for seat, key in enumerate(new):
            self._flights[key] = _Flight(task, seat)
        self._tasks.add(task)

        def landed(task: asyncio.Task[Sequence[V]]) -> None:
            self._tasks.discard(task)
            for key in new:
                if self._flights[key].task is task:
                    del self._flights[key]
            if not task.cancelled():
                task.exception()  # those who waited may all be gone; the failure was theirs to see

        task.add_done_callback(landed)
        return task


async def _failed(flights: Sequence[_Flight[V]]) -> set[asyncio.Task[Sequence[V]]]:
    """Waits for all of them; those that ended with an error of ours."""
    failed = set()
    for task in dict.fromkeys(flight.task for flight in flights):
        try:
            await asyncio.shield(task)
        except FirstlineError:
            failed.add(task)
    return failed
