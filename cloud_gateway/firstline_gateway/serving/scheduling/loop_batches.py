"""Batches of quick models on the event loop: each has the requests that came in the same turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firstline_core.clock import Clock
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.types import InferRequest, ModelKey
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.serving.scheduling.queue import PendingRequest

TURN_S = 0.003
"""The time that batches of quick models may take in one turn of the event loop."""
WAITING_S = 0.01
"""The work that may wait for the event loop; more requests wait in the queue, for the threads."""


@dataclass(slots=True)
class PendingBatch:
    """The requests of one quick model that came in this turn of the event loop, and their expected time."""

    items: list[PendingRequest] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0


class LoopBatches:
    """Collects the requests of quick models. Belongs to one event loop.

    Args:
        dispatcher: knows which models are quick, and their times.
        clock: for deadlines and for the time of a turn.
        max_rows: of a batch.
        run: runs a batch in this turn.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        max_rows: int,
        run: Callable[[ModelKey, Sequence[PendingRequest]], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._max_rows = max_rows
        self._run = run
        self._batches: dict[ModelKey, PendingBatch] = {}  # the next one first
        self._came = 0  # requests in this turn
        self._was_alone = False  # at most one request came in the turn before
        self._is_due = False  # the end of the turn is scheduled

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return sum([len(batch.items) for batch in self._batches.values()])

    def join(self, key: ModelKey, request: InferRequest, times: LoopTimes, now_s: float) -> PendingRequest | None:
        """Adds a request of a quick model to the batch of this turn, if there is room; None if it has to queue."""
        rows = request.rows
        alone_s = times.seconds(rows, now_s)
        if alone_s is None:
            return None
        if request.audit is not None and (self._batches or self._came):
            return None  # an audit gives way
        batch = self._batches.get(key)
        if batch is None:
            batch, seconds = PendingBatch(), alone_s
        else:
            seconds = times.expected_s(batch.rows + rows)
        work_s = seconds
        if self._batches:
            work_s += sum([each.seconds for each in self._batches.values()]) - batch.seconds
        if work_s > WAITING_S or (request.deadline_s is not None and request.deadline_s < now_s + work_s):
            return None
        item = PendingRequest(key, request, now_s)
        self._came += 1
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run_turn)
        if self._was_alone and self._came == 1 and not self._batches:
            self._run(key, [item])  # while requests come one at a time, none waits for others
            return item
        batch.items.append(item)
        batch.rows += rows
        batch.seconds = seconds
        self._batches[key] = batch
        return item

    def take_all(self) -> list[PendingRequest]:
        """Removes and returns the requests that wait."""
        batches, self._batches = self._batches, {}
        return [item for batch in batches.values() for item in batch.items]

    def _run_turn(self) -> None:
        """Runs the batches of this turn, as long as one turn may take; the rest goes first in the next."""
        self._is_due, self._was_alone, self._came = False, self._came <= 1, 0
        end_s = self._clock.monotonic_s() + TURN_S
        while self._batches:
            key = next(iter(self._batches))
            items = self._take(key, self._batches.pop(key))
            if items := [item for item in items if not item.answered.done()]:  # the callers of the others have left
                self._run(key, items)
            if self._batches and self._clock.monotonic_s() >= end_s:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._run_turn)
                return

    def _take(self, key: ModelKey, batch: PendingBatch) -> list[PendingRequest]:
        """Returns as many requests as one batch takes; the rest goes behind the other models."""
        times = self._dispatcher.loop_times(key)
        most = times.worthwhile_rows(self._max_rows) if times is not None else batch.rows
        rows = taken = 0
        for item in batch.items:
            rows += item.rows
            if taken and rows > most:
                break
            taken += 1
        left = batch.items[taken:]
        if left and times is not None:
            left_rows = sum([item.rows for item in left])
            self._batches[key] = PendingBatch(left, left_rows, times.expected_s(left_rows))
        return batch.items[:taken]
