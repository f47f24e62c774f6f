"""Batches for an engine of several executors: each stays in the queue until one is free that is worth it.

What is told to wait is no batch yet: whoever comes meanwhile may join it, or go before. It is looked at again with
every newcomer, whenever an executor is free, and when what it waits for should have ended long ago.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from firstline_core.clock import Clock, Timer
from firstline_gateway.executors.base import HasSeats, Look, ModelKey, Seat, Times
from firstline_gateway.scheduling.admission import Admission
from firstline_gateway.scheduling.batches import Choice, choose, level
from firstline_gateway.scheduling.waiting import Queue, Waiting


class Late:
    """Belongs to one event loop.

    Args:
        engine: whose seats there are.
        queue: what waits; only read here.
        admission: which knows what models take all in all.
        clock: what deadlines are on.
        max_rows: of a batch.
        full: models that run as many batches as they may.
        begin: takes a batch out of the queue and runs it there; False where it does not, which ends the filling.
            Without a seat the engine is to say why nobody takes it.
    """

    def __init__(
        self,
        engine: HasSeats,
        queue: Queue,
        admission: Admission,
        *,
        clock: Clock,
        max_rows: int,
        full: Callable[[], AbstractSet[ModelKey]],
        begin: Callable[[Choice, float, Seat | None], bool],
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._admission = admission
        self._clock = clock
        self._max_rows = max_rows
        self._full = full
        self._begin = begin
        self._again: Timer | None = None
        self._is_due = False
        engine.on_free(self._fill_soon)

    def is_free(self, key: ModelKey, rows: int) -> bool:
        """Whether a request that comes now, where nothing waits, begins at once."""
        look = self._engine.look()
        seat = None if look is None else look.seat(key, rows, self._max_rows, rows)
        return seat is not None and seat.is_free

    def fill(self) -> None:
        """Begins what is to begin now."""
        self._is_due = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        again_s = math.inf
        while self._queue:
            now_s = self._clock.monotonic_s()
            choice, seat, again_s = self._next(now_s)
            if not (choice.batch or choice.hopeless) or not self._begin(choice, now_s, seat):
                break
        if self._queue and again_s < math.inf:
            self._again = self._clock.call_at(self._clock.monotonic_s() + again_s, self.fill)

    def _fill_soon(self) -> None:
        if not self._is_due and self._queue:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.fill)

    def _next(self, now_s: float) -> tuple[Choice, Seat | None, float]:
        """What is to begin now, and where; without a batch, in how many seconds to look again if nothing happens."""
        again_s = math.inf
        look, waiting = self._engine.look(), list(self._queue)
        while look is not None and waiting:
            seats = _Seats(look, waiting, self._admission, self._max_rows)
            choice = choose(
                waiting,
                seats,
                now_s=now_s,
                margin_s=self._admission.margin.seconds,
                max_rows=self._max_rows,
                full=self._full(),
            )
            seat = seats.found[choice.batch[0].key] if choice.batch else None
            if seat is None or seat.is_free:
                return choice, seat, again_s
            if choice.hopeless:
                return choice._replace(batch=[], put_off=[]), None, again_s
            again_s = min(again_s, seat.again_s)
            look.hold(choice.batch[0].key, seat, choice.rows)
            held = set(map(id, choice.batch))
            waiting = [item for item in waiting if id(item) not in held]
        return Choice([], [], []), None, again_s


class _Seats(dict[ModelKey, Times]):
    """What batches take, by model, where the next one of it is to run; found as it is asked for."""

    def __init__(self, look: Look, waiting: Sequence[Waiting], admission: Admission, max_rows: int) -> None:
        super().__init__()
        self._look = look
        self._waiting = waiting
        self._admission = admission
        self._max_rows = max_rows
        self.found: dict[ModelKey, Seat | None] = {}

    def __missing__(self, key: ModelKey) -> Times:
        of_model = [item for item in self._waiting if item.key == key]
        rows = sum(item.request.rows for item in of_model)
        # Whoever is due first is run, or whoever is of the highest level: see `batches.choose`.
        least_rows = max(of_model[0].request.rows, min(of_model, key=level).request.rows)
        seat = self.found[key] = self._look.seat(key, rows, self._max_rows, least_rows)
        times = self[key] = self._admission.times[key] if seat is None else seat.times
        return times
