"""Batches for an engine of several executors: each stays in the queue until one is free that is worth it.

What is told to wait is no batch yet: whoever comes meanwhile may join it, or go before. It is looked at again with
every newcomer, whenever an executor is free, and when what it waits for should have ended long ago.

A request that no executor may run, because none is there or it is beyond all their budgets, waits aside: the others, of
its own model too, go on as if it were not in the queue. Whoever cannot wait so long is told at once.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from firstline_core.clock import Clock, Timer
from firstline_core.errors import FirstlineError
from firstline_gateway.executors.base import HasSeats, Look, ModelKey, NoSeat, Seat, Times
from firstline_gateway.scheduling.admission import Admission, Before
from firstline_gateway.scheduling.batches import Choice, choose, level
from firstline_gateway.scheduling.waiting import Queue, Tally, Waiting

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
        self._aside: set[Waiting] = set()
        self._aside_of: defaultdict[ModelKey, Tally] = defaultdict(Tally)
        engine.on_free(self._fill_soon)

    @property
    def aside_s(self) -> float:
        """Seconds of one slot that what waits aside would take."""
        return sum(of_model.work_s for of_model in self._aside_of.values())

    def withdraw(self, item: Waiting) -> None:
        """A request waits no longer."""
        if item in self._aside:
            self._aside.remove(item)
            self._aside_of[item.key].count(item, -1)

    def before(self, key: ModelKey, rows: int, running: Iterable[tuple[ModelKey, float]]) -> tuple[bool, Before]:
        """Whether a request that comes now begins at once, and what is before it.

        Args:
            key: its model.
            rows: its rows.
            running: of each batch, its model and the seconds that it will still take.
        """
        look = self._engine.look()
        seat = self._seat_now(look, key, rows)
        slots, parts = look.way(key)
        busy_s = sum(left_s * parts.get(other, 0.0) for other, left_s in running)
        alone_s = seat.times.seconds(rows) if seat is not None else look.quickest_s(key, rows)
        found = {other: part * self._goes_on(other, newcomers=key) for other, part in parts.items()}
        # So that nobody has to add up what is the sum of all.
        is_all = len(self._queue) == sum(self._queue.of(other).requests for other in found if found[other] == 1)
        return seat is not None, Before(slots, busy_s, None if is_all else found, alone_s)

    def _goes_on(self, key: ModelKey, newcomers: ModelKey) -> float:
        """The part of a model's work that does not wait aside. Where all of it does, a newcomer of it will as well."""
        of_model, aside = self._queue.of(key), self._aside_of[key]
        if not aside.requests or (key == newcomers and aside.requests == of_model.requests):
            return 1.0
        return max(0.0, 1.0 - aside.work_s / of_model.work_s) if of_model.work_s else 0.0

    def _seat_now(self, look: Look, key: ModelKey, rows: int) -> Seat | None:
        """Where a newcomer begins at once: what waits of other models has been looked at, and left that one free."""
        if look.is_full or self._queue.of(key).requests or key in self._full():
            return None
        seat = look.seat(key, rows, self._max_rows, rows)
        return seat if not isinstance(seat, NoSeat) and seat.is_free else None

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
        self._aside.clear()
        self._aside_of.clear()
        look = self._engine.look()
        if look.is_full:
            return Choice([], [], []), None, self._tell_bounded(look, now_s)
        again_s, waiting = math.inf, list(self._queue)
        while waiting:
            seats = _Seats(look, waiting, self._admission, self._max_rows)
            choice = choose(
                waiting,
                seats,
                now_s=now_s,
                margin_s=self._admission.margin.seconds,
                max_rows=self._max_rows,
                full=self._full(),
            )
            if choice.hopeless:  # they go first: what is left may be another batch, for another seat
                return Choice([], choice.hopeless, []), None, again_s
            if not choice.batch:
                return choice, None, again_s
            key = choice.batch[0].key
            seat = seats.of(key)
            if isinstance(seat, NoSeat):
                of_model = [item for item in waiting if item.key == key]
                seatless, later_s = self._put_aside(look, of_model, now_s)
                again_s = min(again_s, later_s)
                waiting = [item for item in waiting if item not in seatless]
                continue
            if seat.is_free:
                return choice, seat, again_s
            again_s = min(again_s, seat.again_s)
            waiting = self._hold(look, seat, choice, waiting)
        return Choice([], [], []), None, again_s

    def _hold(self, look: Look, seat: Seat, choice: Choice, waiting: Sequence[Waiting]) -> list[Waiting]:
        """A batch waits for its seat; what else is to be looked at."""
        key = choice.batch[0].key
        look.hold(key, seat, choice.rows)
        held = set(map(id, choice.batch))
        left = [item for item in waiting if id(item) not in held]
        if seat.has_others:
            return left
        # The rest of its model waits as well. What of it is due before all others comes before them.
        others = [item for item in left if item.key != key]
        until_s = others[0].due_s if others else math.inf
        rows = sum(item.request.rows for item in left if item.key == key and item.due_s <= until_s)
        look.hold_all(key, rows, self._max_rows)
        return others

    def _tell_bounded(self, look: Look, now_s: float) -> float:
        """Nothing begins now; who is beyond every budget, or runs nowhere, is told all the same."""
        again_s = math.inf
        bounded = {key for key in {item.key for item in self._queue} if look.is_bounded(key)}
        waiting = [item for item in self._queue if item.key in bounded]
        for key in bounded:
            of_model = [item for item in waiting if item.key == key]
            again_s = min(again_s, self._put_aside(look, of_model, now_s)[1])
        return again_s

    def _put_aside(self, look: Look, of_model: Sequence[Waiting], now_s: float) -> tuple[set[Waiting], float]:
        """Puts those of a model aside for which there is no seat, and tells those of them who cannot wait.

        Who is as small as has one is left: what one caller asks for is not to hold all others up.

        Returns:
            Who has none; and in how many seconds they are to be looked at again, whatever happens.
        """
        key, least_rows = of_model[0].key, _least_rows(of_model)

        def seat(rows: int) -> Seat | NoSeat:
            return look.seat(key, rows, self._max_rows, rows)

        # What a batch takes of a budget grows with its rows.
        sizes = sorted({item.request.rows for item in of_model})
        first = bisect_left(sizes, True, hi=sizes.index(least_rows), key=lambda rows: isinstance(seat(rows), NoSeat))
        nowhere = {rows: none for rows in sizes[first:] if isinstance(none := seat(rows), NoSeat)}
        again_s = math.inf
        seatless = [item for item in of_model if item.request.rows in nowhere]
        for item in seatless:
            none = nowhere[item.request.rows]
            if item.latest_s <= now_s + none.again_s:
                self._refuse([item], none.error)
                continue
            item.held_up = True
            self._aside.add(item)
            self._aside_of[key].count(item, 1)
            again_s = min(again_s, none.again_s or math.inf, item.latest_s - now_s)
        return set(seatless), max(_AGAIN_S, again_s)


def _least_rows(of_model: Sequence[Waiting]) -> int:
    """Of the next batch of a model: whoever is due first is run, or whoever is of the highest level; see `choose`."""
    return max(of_model[0].request.rows, min(of_model, key=level).request.rows)


class _Seats(dict[ModelKey, Times]):
    """What batches take, by model, where the next one of it is to run; found as it is asked for."""

    def __init__(self, look: Look, waiting: Sequence[Waiting], admission: Admission, max_rows: int) -> None:
        super().__init__()
        self._look = look
        self._waiting = waiting
        self._admission = admission
        self._max_rows = max_rows
        self._found: dict[ModelKey, Seat | NoSeat] = {}

    def of(self, key: ModelKey) -> Seat | NoSeat:
        """Where the next batch of a model is to run."""
        if key in self._found:
            return self._found[key]
        of_model = [item for item in self._waiting if item.key == key]
        rows = sum(item.request.rows for item in of_model)
        seat = self._found[key] = self._look.seat(key, rows, self._max_rows, _least_rows(of_model))
        return seat

    def __missing__(self, key: ModelKey) -> Times:
        seat = self.of(key)
        times = self[key] = self._admission.times[key] if isinstance(seat, NoSeat) else seat.times
        return times
