"""Batches for an engine whose slots are all alike: each begins once one of them is free.

Where the engine's threads take them ahead (`ahead.py`), what those have begun by themselves is followed from then on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.runtime.batch_times import BatchTimes
from firstline_core.types import ModelKey
from firstline_gateway.executors.base import Executor, InProcess, Offer, TakesAhead
from firstline_gateway.executors.seating import Lane, Seat
from firstline_gateway.serving.scheduling.admission import Before
from firstline_gateway.serving.scheduling.ahead import Ahead
from firstline_gateway.serving.scheduling.batches import Choice, choose
from firstline_gateway.serving.scheduling.course import Course
from firstline_gateway.serving.scheduling.inline import INLINE_S
from firstline_gateway.serving.scheduling.margin import Margin
from firstline_gateway.serving.scheduling.running import Ran, Running
from firstline_gateway.serving.scheduling.waiting import Queue, Waiting


class Gate(Protocol):
    """What happens to requests that leave the queue; see `Batcher`."""

    def begin(self, choice: Choice, now_s: float, seat: Seat | None = None) -> None:
        """Takes a batch out of the queue and runs it, where there are several executors on the one with its seat."""
        ...

    def follow(self, items: list[Waiting], ran: Ran, started_s: float) -> None:
        """Sees to what comes of a batch that runs since then, of requests that are out of the queue."""
        ...

    def refuse(self, items: Sequence[Waiting], error: FirstlineError) -> None:
        """Takes requests out of the queue and tells them an error."""
        ...


class Line(NamedTuple):
    """What a feeder needs to know.

    Args:
        queue: what waits.
        running: what runs.
        margin: what predictions are usually late by.
        clock: what deadlines are on.
        max_rows: of a batch.
        gate: where requests leave the queue.
    """

    queue: Queue
    running: Running
    margin: Margin
    clock: Clock
    max_rows: int
    gate: Gate


class Feeder(Protocol):
    """Gives an engine what waits."""

    @property
    def wait_s(self) -> float:
        """How long a request without a deadline that came now would wait, as far as is known."""
        ...

    def before(self, key: ModelKey, rows: int, now_s: float) -> tuple[bool, Before]:
        """Whether a request that comes now begins at once, and what is before it."""
        ...

    def fill(self) -> None:
        """Begins what is to begin now."""
        ...

    def came(self, item: Waiting) -> None:
        """Likewise, where nothing has changed but that this one is in the queue."""
        ...

    def withdraw(self, item: Waiting) -> None:
        """A request waits no longer."""
        ...

    def ended(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """Learns from a batch."""
        ...


class Feeding:
    """See `Feeder`. Belongs to one event loop.

    Args:
        executor: runs at most `executor.slots` batches at the same moment.
        line: what waits for it.
    """

    def __init__(self, executor: Executor, line: Line) -> None:
        self._executor = executor
        self._queue = line.queue
        self._running = line.running
        self._margin = line.margin
        self._clock = line.clock
        self._max_rows = line.max_rows
        self._gate = line.gate
        self._times: defaultdict[ModelKey, BatchTimes] = defaultdict(BatchTimes)
        self._measured: Callable[[ModelKey], Mapping[int, float]] = (
            executor.measured if isinstance(executor, InProcess) else lambda key: {}
        )
        self._ahead = (
            Ahead(
                executor,
                line.queue,
                lambda key: self._times[key],
                clock=line.clock,
                max_rows=line.max_rows,
                is_bound=lambda key: line.running.is_bound(key, executor.slots),
            )
            if isinstance(executor, TakesAhead)
            else None
        )

    @property
    def wait_s(self) -> float:
        return (self._busy_s(self._clock.monotonic_s()) + self._queue.work_s()) / self._executor.slots

    def before(self, key: ModelKey, rows: int, now_s: float) -> tuple[bool, Before]:
        times, slots = self._times[key], self._executor.slots
        known = times.known or self._expect(key, times)
        idle = not self._queue and not self._running.is_full(key) and len(self._running.batches) < slots
        course = Course((Lane(self._busy_s(now_s) / slots, times, slots),), times)
        return idle, Before(course, known, None, times.seconds(rows), times.ended_s)

    def fill(self) -> None:
        ahead, slots = self._ahead, self._executor.slots
        if ahead is None:
            self._fill()
            return
        if len(self._running.batches) < slots:
            self._adopt(ahead.begun())
        if len(self._running.batches) < slots:
            self._adopt(ahead.take_back())
            self._fill()
        if len(self._running.batches) >= slots:
            ahead.look(self._busy_s(self._clock.monotonic_s()), slots)

    def came(self, item: Waiting) -> None:
        self.fill()

    def withdraw(self, item: Waiting) -> None:
        if self._ahead is not None:
            self._ahead.withdraw(item)

    def ended(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        self._times[key].observe(rows, seconds, now_s)

    def _expect(self, key: ModelKey, times: BatchTimes) -> bool:
        """A large model is known from its loading on; what a small one takes in threads says more of Python's lock."""
        if (measured := self._measured(key)).get(1, 0.0) > INLINE_S:
            times.expect(measured)
        return times.known

    def _busy_s(self, now_s: float) -> float:
        """What runs will still take. What takes longer than expected is expected to take as much longer again."""
        return sum(
            [
                abs(each.started_s + self._times[each.key].seconds(each.rows) - now_s)
                for each in self._running.batches.values()
            ]
        )

    def _adopt(self, begun: list[tuple[Waiting, Offer]]) -> None:
        """Counts among the running what threads have begun by themselves."""
        for item, offer in begun:
            self._queue.remove(item)
            started_s = self._clock.monotonic_s() if offer.begun_s is None else offer.begun_s
            self._gate.follow([item], asyncio.wrap_future(offer.ran), started_s)

    def _fill(self) -> None:
        while self._queue and len(self._running.batches) < self._executor.slots:
            now_s = self._clock.monotonic_s()
            choice = choose(
                self._queue,
                self._times,
                now_s=now_s,
                margin_s=self._margin.seconds,
                max_rows=self._max_rows,
                full=self._running.full(),
            )
            if not choice.batch and not choice.hopeless:  # all that waits is for models that run as often as they may
                return
            self._gate.begin(choice, now_s)
