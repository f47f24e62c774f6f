"""The next batch, given to the engine's threads before one is free, so that none idles while the event loop decides.

Between a run's end and the next one's beginning there would be the loop's turn, with whatever it is doing, and twice
Python's lock: of a model of 13 ms that is a twentieth. What is given ahead still waits: it stays in the queue, and is
taken back where something else is to go first, until a thread has begun it.

Only what a later decision would hardly change goes ahead: the first in line, of a model to which larger batches bring
nothing, while all that waits is of one level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_gateway.executors.base import ModelKey, Offer, TakesAhead
from firstline_gateway.scheduling.batch_times import BatchTimes
from firstline_gateway.scheduling.waiting import Queue, Waiting


@dataclass(frozen=True, slots=True)
class _Offered:
    item: Waiting
    offer: Offer


class Ahead:
    """At most one request that is given ahead. Belongs to one event loop.

    Args:
        executor: whose threads take it.
        queue: where it waits meanwhile.
        times: of each model.
        clock: what deadlines are on.
        max_rows: of a batch.
        is_bound: whether a model may not run in as many threads as there are.
    """

    def __init__(
        self,
        executor: TakesAhead,
        queue: Queue,
        times: Callable[[ModelKey], BatchTimes],
        *,
        clock: Clock,
        max_rows: int,
        is_bound: Callable[[ModelKey], bool],
    ) -> None:
        self._executor = executor
        self._queue = queue
        self._times = times
        self._clock = clock
        self._max_rows = max_rows
        self._is_bound = is_bound
        self._offered: _Offered | None = None

    def look(self, busy_s: float) -> None:
        """Gives the first in line ahead, in place of what was before; to be called where every thread is busy.

        Args:
            busy_s: what the running batches will still take, all together.
        """
        first = self._first(busy_s)
        if self._offered is not None:
            if self._offered.item is first or not self._offered.offer.withdraw():
                return
            self._offered = None
        if first is not None:
            request = first.request
            offer = self._executor.offer(first.key, [request.inputs[0]], [request.deadline_s])
            self._offered = _Offered(first, offer)

    def withdraw(self, item: Waiting) -> None:
        """Takes a request back that waits no longer, where it is not begun."""
        if self._offered is not None and self._offered.item is item and self._offered.offer.withdraw():
            self._offered = None

    def begun(self) -> tuple[Waiting, Offer] | None:
        """What a thread has begun since; what none has is taken back, for a decision anew."""
        if self._offered is None:
            return None
        offered, self._offered = self._offered, None
        return None if offered.offer.withdraw() else (offered.item, offered.offer)

    def _first(self, busy_s: float) -> Waiting | None:
        first = next(iter(self._queue), None)
        if first is None or self._is_bound(first.key):
            return None
        if self._queue.of(first.level).requests < len(self._queue):
            return None
        if first.request.rows < self._times(first.key).worthwhile_rows(self._max_rows):
            return None
        deadline_s = first.request.deadline_s
        if deadline_s is not None and first.latest_s < self._clock.monotonic_s() + busy_s + first.alone_s:
            return None  # it may be hopeless by then, which is not to be begun
        return first
