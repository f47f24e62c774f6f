"""Single flight: equal work that is requested at the same moment is done once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
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

    A computation outlives the caller that started it: callers that joined still get their values. It goes on without
        any caller, unless it was started with `keep=False`. Failures are not remembered.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, _Flight[V]] = {}
        self._tasks: set[asyncio.Task[Sequence[V]]] = set()
        self._callers: Counter[asyncio.Task[Sequence[V]]] = Counter()

    def __contains__(self, key: object) -> bool:
        """Returns whether the key is being computed now."""
        return key in self._flights

    async def run(
        self,
        keys: Sequence[bytes],
        compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]],
        *,
        keep: bool = True,
    ) -> list[V]:
        """One value for each key, in order.

        Args:
            keys: may repeat.
            compute: receives positions in `keys` that are not being computed, each distinct key once, and returns one
                value for each.
            keep: whether a computation that this caller starts continues when no caller is left.

        Raises:
            FirstlineError: what `compute` raised. When another caller's computation fails, which may have had
                less time or a bad neighbour in its batch, this caller computes for itself before giving up.
        """
        flights, own = self._board(keys, compute)
        with self._waiting_for(flights):
            if own is not None:
                try:
                    await asyncio.shield(own)
                except asyncio.CancelledError:
                    if not keep and self._callers[own] == 1:
                        self._cancel(own)
                    raise
            failed = await _failed(flights)
        again = [position for position, flight in enumerate(flights) if flight.task in failed]
        if again:  # what landed well is not computed twice

            async def compute_again(seats: Sequence[int]) -> Sequence[V]:
                return await compute([again[seat] for seat in seats])

            second, _ = self._board([keys[position] for position in again], compute_again)
            with self._waiting_for(second):
                for position, flight in zip(again, second, strict=True):
                    await asyncio.shield(flight.task)
                    flights[position] = flight
        return [flight.task.result()[flight.position] for flight in flights]

    async def close(self) -> None:
        """Cancels what still flies."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def _waiting_for(self, flights: Sequence[_Flight[V]]) -> Iterator[None]:
        """Counts a caller of theirs."""
        tasks = {flight.task for flight in flights}
        self._callers.update(tasks)
        try:
            yield
        finally:
            for task in tasks:
                self._callers[task] -= 1
                if not self._callers[task]:
                    del self._callers[task]

    def _cancel(self, task: asyncio.Task[Sequence[V]]) -> None:
        """Cancels a computation; the next caller starts another."""
        for key in [key for key, flight in self._flights.items() if flight.task is task]:
            del self._flights[key]
        task.cancel()

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
                if key in self._flights and self._flights[key].task is task:
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
