"""Batches for an engine of several executors: each stays in the queue until one is free that is worth it.

What is told to wait is no batch yet: whoever comes meanwhile may join it, or go before. It is looked at again with
every newcomer, whenever an executor is free, and when what it waits for should have ended long ago.

A model that no executor may run, because none is there or all are at the end of their budgets, waits aside: the others
go on as if nothing of it were in the queue. Whoever cannot wait so long is told at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from firstline_core.clock import Clock, Timer
from firstline_core.errors import FirstlineError
from firstline_gateway.executors.base import HasSeats, Look, ModelKey, NoSeat, Seat, Times
from firstline_gateway.scheduling.admission import Admission
from firstline_gateway.scheduling.batches import Choice, choose, level
from firstline_gateway.scheduling.waiting import Queue, Waiting

# No sooner than that is looked again for what waits for a budget.
_AGAIN_S = 0.001


class Late:
    """Belongs to one event loop.

    Args:
        engine: whose seats there are.
        queue: what waits; only read here.
        admission: which knows what models take all in all.
        clock: what deadlines are on.
        max_rows: of a batch.
        full: models that run as many batches as they may.
        begin: takes a batch out of the queue and runs it there.
        refuse: takes requests out of the queue and tells them an error.
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
        begin: Callable[[Choice, float, Seat | None], None],
        refuse: Callable[[Sequence[Waiting], FirstlineError], None],
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._admission = admission
        self._clock = clock
        self._max_rows = max_rows
        self._full = full
        self._begin = begin
        self._refuse = refuse
        self._again: Timer | None = None
        self._is_due = False
        engine.on_free(self._fill_soon)

    def is_free(self, key: ModelKey, rows: int) -> bool:
        """Whether a request that comes now, where nothing waits, begins at once."""
        look = self._engine.look()
        seat = None if look is None else look.seat(key, rows, self._max_rows, rows)
        return seat is not None and not isinstance(seat, NoSeat) and seat.is_free

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
            if not (choice.batch or choice.hopeless):
                break
            self._begin(choice, now_s, seat)
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
            if not choice.batch:
                return choice, None, again_s
            key = choice.batch[0].key
            seat = seats.found[key]
            if isinstance(seat, NoSeat):
                again_s = min(again_s, self._put_aside([item for item in waiting if item.key == key], seat, now_s))
                waiting = [item for item in waiting if item.key != key]
                continue
            if seat.is_free:
                return choice, seat, again_s
            if choice.hopeless:
                return choice._replace(batch=[], put_off=[]), None, again_s
            again_s = min(again_s, seat.again_s)
            look.hold(key, seat, choice.rows)
            held = set(map(id, choice.batch))
            waiting = [item for item in waiting if id(item) not in held]
        return Choice([], [], []), None, again_s

    def _put_aside(self, of_model: Sequence[Waiting], none: NoSeat, now_s: float) -> float:
        """Tells those who cannot wait; in how many seconds the others are to be looked at again, whatever happens."""
        ends_s = now_s + none.again_s
        if late := [item for item in of_model if item.latest_s <= ends_s]:
            self._refuse(late, none.error)
        patient_s = min((item.latest_s - now_s for item in of_model if item.latest_s > ends_s), default=math.inf)
        return max(_AGAIN_S, min(none.again_s or math.inf, patient_s))


class _Seats(dict[ModelKey, Times]):
    """What batches take, by model, where the next one of it is to run; found as it is asked for."""

    def __init__(self, look: Look, waiting: Sequence[Waiting], admission: Admission, max_rows: int) -> None:
        super().__init__()
        self._look = look
        self._waiting = waiting
        self._admission = admission
        self._max_rows = max_rows
        self.found: dict[ModelKey, Seat | NoSeat] = {}

    def __missing__(self, key: ModelKey) -> Times:
        of_model = [item for item in self._waiting if item.key == key]
        rows = sum(item.request.rows for item in of_model)
        # Whoever is due first is run, or whoever is of the highest level: see `batches.choose`.
        least_rows = max(of_model[0].request.rows, min(of_model, key=level).request.rows)
        seat = self.found[key] = self._look.seat(key, rows, self._max_rows, least_rows)
        times = self[key] = self._admission.times[key] if isinstance(seat, NoSeat) else seat.times
        return times
