"""The next batches, given to threads before those are free, so that none idles while the event loop decides.

Between a run's end and the next one's beginning there would be the loop's turn, with whatever it is doing, and twice
Python's lock: of a model of 13 ms that is a twentieth. What is given ahead still waits: it stays in the queue, and is
taken back where something else is to go first, until a thread has begun it.

Only what a later decision would hardly change goes ahead: the first in line, one a thread, of models to which larger
batches bring nothing, while all that waits is of one level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from firstline_core.clock import Clock
from firstline_core.runtime.batch_times import BatchTimes
from firstline_core.types import ModelKey
from firstline_gateway.executors.base import Offer, TakesAhead
from firstline_gateway.serving.scheduling.waiting import Queue, Waiting


class _Offered(NamedTuple):
    item: Waiting
    offer: Offer


class Ahead:
    """What is given ahead, at most one request a thread. Belongs to one event loop.

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
        self._offered: list[_Offered] = []

    def look(self, busy_s: float, most: int) -> None:
        """Gives the first in line ahead, in place of what was before; to be called where every thread is busy.

        Args:
            busy_s: what the running batches will still take, all together.
            most: how many may be ahead.
        """
        wanted = list(self._first(busy_s, most))
        kept = 0
        while kept < min(len(wanted), len(self._offered)) and self._offered[kept].item is wanted[kept]:
            kept += 1
        # The last first, lest a thread takes it while the one before it goes. What one has begun stays.
        self._offered[kept:] = [left for left in reversed(self._offered[kept:]) if not left.offer.withdraw()]
        held = [offered.item for offered in self._offered]
        for item in wanted:
            if item not in held:
                request = item.request
                offer = self._executor.offer(item.key, [request.inputs[0]], [request.deadline_s])
                self._offered.append(_Offered(item, offer))

    def withdraw(self, item: Waiting) -> None:
        """Takes a request back that waits no longer, where it is not begun."""
        self._offered = [left for left in self._offered if left.item is not item or not left.offer.withdraw()]

    def begun(self) -> list[tuple[Waiting, Offer]]:
        """What threads have begun since, in their order."""
        begun = [offered for offered in self._offered if offered.offer.is_begun]
        self._offered = [offered for offered in self._offered if offered not in begun]
        return [*begun]

    def take_back(self) -> list[tuple[Waiting, Offer]]:
        """Takes back what none has begun, for a decision anew; returns what one has meanwhile, as `begun` does."""
        offered, self._offered = self._offered, []
        return [(item, offer) for item, offer in reversed(offered) if not offer.withdraw()]

    def _first(self, busy_s: float, most: int) -> Iterator[Waiting]:
        for item in islice(self._queue, most):
            if not self._may_go(item, busy_s):
                return
            yield item

    def _may_go(self, item: Waiting, busy_s: float) -> bool:
        if self._is_bound(item.key) or self._queue.of(item.level).requests < len(self._queue):
            return False
        if item.request.rows < self._times(item.key).worthwhile_rows(self._max_rows):
            return False
        deadline_s = item.request.deadline_s
        # It may be hopeless by then, which is not to be begun.
        return deadline_s is None or item.latest_s >= self._clock.monotonic_s() + busy_s + item.alone_s
