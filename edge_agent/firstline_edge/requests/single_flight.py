"""Single flight: equal work that is requested at the same moment is done once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from firstline_core.clock import end_tasks
from firstline_core.errors import FirstlineError

V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class _Computation(Generic[V]):
    """A computation of several keys; `position` is that of one key among its results."""

    task: asyncio.Task[Sequence[V]]
    position: int


class SingleFlight(Generic[V]):
    """Computes every key once at a time; one computation may have several keys.

    A computation outlives the caller that started it: callers that joined still get their values. It continues without
    any caller, unless it was started with `keep=False`. Failures are not remembered.
    """

    def __init__(self) -> None:
        self._computations: dict[bytes, _Computation[V]] = {}  # in progress
        self._callers: Counter[asyncio.Task[Sequence[V]]] = Counter()

    def __contains__(self, key: object) -> bool:
        """Returns whether the key is being computed now."""
        return key in self._computations

    async def run(
        self, keys: Sequence[bytes], compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]], *, keep: bool = True
    ) -> list[V]:
        """Returns one value for each key, in order.

        Args:
            keys: may repeat.
            compute: receives positions in `keys` that are not being computed, each distinct key once, and returns one
                value for each.
            keep: whether a computation that this caller starts continues when no caller is left.

        Raises:
            FirstlineError: what `compute` raised. When another caller's computation fails, which may have had
                less time or a bad row in its batch, this caller computes for itself before it gives up.
        """
        computations, own = self._join(keys, compute)
        with self._waiting_for(computations):
            if own is not None:
                try:
                    await asyncio.shield(own)
                except asyncio.CancelledError:
                    if not keep and self._callers[own] == 1:
                        self._cancel(own)
                    raise
            failed = await _failed(computations)
        again = [position for position, computation in enumerate(computations) if computation.task in failed]
        if again:  # values that were computed are not computed twice

            async def compute_again(positions: Sequence[int]) -> Sequence[V]:
                return await compute([again[position] for position in positions])

            second, _ = self._join([keys[position] for position in again], compute_again)
            with self._waiting_for(second):
                for position, computation in zip(again, second, strict=True):
                    await asyncio.shield(computation.task)
                    computations[position] = computation
        return [computation.task.result()[computation.position] for computation in computations]

    async def close(self) -> None:
        """Cancels the computations in progress."""
        await end_tasks(*{computation.task for computation in self._computations.values()})

    @contextmanager
    def _waiting_for(self, computations: Sequence[_Computation[V]]) -> Iterator[None]:
        """Counts a caller of each computation."""
        tasks = {computation.task for computation in computations}
        self._callers.update(tasks)
        try:
            yield
        finally:
            self._callers.subtract(tasks)
            for task in tasks:
                if not self._callers[task]:
                    del self._callers[task]

    def _cancel(self, task: asyncio.Task[Sequence[V]]) -> None:
        """Cancels a computation; the next caller starts another."""
        for key in [key for key, computation in self._computations.items() if computation.task is task]:
            del self._computations[key]
        task.cancel()

    def _join(
        self, keys: Sequence[bytes], compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]]
    ) -> tuple[list[_Computation[V]], asyncio.Task[Sequence[V]] | None]:
        """Returns the computation of each key, and the task that this caller started for the new ones."""
        new: dict[bytes, int] = {}
        for position, key in enumerate(keys):
            if key not in self._computations:
                new.setdefault(key, position)
        own = self._start(new, compute) if new else None
        return [self._computations[key] for key in keys], own

    def _start(
        self, new: dict[bytes, int], compute: Callable[[Sequence[int]], Awaitable[Sequence[V]]]
    ) -> asyncio.Task[Sequence[V]]:
        async def computed() -> Sequence[V]:
            return await compute(list(new.values()))

        task = asyncio.get_running_loop().create_task(computed())
        for position, key in enumerate(new):
            self._computations[key] = _Computation(task, position)

        def ended(task: asyncio.Task[Sequence[V]]) -> None:
            for key in new:
                if key in self._computations and self._computations[key].task is task:
                    del self._computations[key]
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it if every caller has left

        task.add_done_callback(ended)
        return task


async def _failed(computations: Sequence[_Computation[V]]) -> set[asyncio.Task[Sequence[V]]]:
    """Waits for all computations; returns those that ended with an error of this project."""
    failed = set()
    for task in dict.fromkeys(computation.task for computation in computations):
        try:
            await asyncio.shield(task)
        except FirstlineError:
            failed.add(task)
    return failed
