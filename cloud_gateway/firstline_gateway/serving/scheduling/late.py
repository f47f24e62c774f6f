"""Batches for an engine of several executors: each stays in the queue until one is free that is worth it.

What is told to wait is no batch yet: whoever comes meanwhile may join it, or go before. It is looked at again whenever
an executor is free, when what it waits for should have ended long ago, and with each newcomer but those of whom it is
known that they wait as well, behind all others.

A request that no executor may run, because none is there or it is beyond all their budgets, waits aside: the others, of
its own model too, go on as if it were not in the queue. Whoever cannot wait so long is told at once.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from firstline_core.clock import Timer
from firstline_core.runtime.batch_times import BatchTimes
from firstline_core.types import ModelKey
from firstline_gateway.executors.seating import HasSeats, Lane, Look, NoSeat, Seat, Times
from firstline_gateway.serving.scheduling.admission import Before
from firstline_gateway.serving.scheduling.batches import Choice, choose, level
from firstline_gateway.serving.scheduling.course import course
from firstline_gateway.serving.scheduling.feeding import Line
from firstline_gateway.serving.scheduling.running import Running
from firstline_gateway.serving.scheduling.waiting import Parts, Tally, Waiting

# No sooner than that is looked again for what waits for a budget.
_AGAIN_S = 0.001


_NOTHING = Choice([], [], [])
# Of what runs nowhere.
_UNKNOWN = BatchTimes()


class Late:
    """See `feeding.Feeder`. Belongs to one event loop.

    Args:
        engine: whose seats there are.
        line: what waits for them.
    """

    def __init__(self, engine: HasSeats, line: Line) -> None:
        self._engine = engine
        self._queue = line.queue
        self._running = line.running
        self._margin = line.margin
        self._clock = line.clock
        self._max_rows = line.max_rows
        self._gate = line.gate
        self._ended_s: dict[ModelKey, float] = {}
        self._again: Timer | None = None
        self._is_due = False
        self._settled: Look | None = None
        self._aside: set[Waiting] = set()
        self._aside_of: defaultdict[ModelKey, Tally] = defaultdict(Tally)
        engine.on_free(self._fill_soon)

    @property
    def wait_s(self) -> float:
        """That of a request of any model, as often as requests of it wait."""
        look, waits_s, requests = self._engine.look(), 0.0, 0
        for key in self._queue.models:
            going_on = self._queue.of_model(key).requests - self._aside_of[key].requests
            if going_on and (lanes := look.lanes(key)):
                wait_s = course(lanes, self._max_rows).of(1).wait_s(self._queue.work_s(self._parts(look, key)))
                waits_s, requests = waits_s + going_on * wait_s, requests + going_on
        return waits_s / requests if requests else 0.0

    def before(self, key: ModelKey, rows: int, now_s: float) -> tuple[bool, Before]:
        look = self._engine.look()
        seat = self._seat_now(look, key, rows)
        lanes = look.lanes(key) or [Lane(0.0, _UNKNOWN)]
        found = course(lanes, self._max_rows)
        return seat is not None, Before(
            course=found,
            known=found.times.seconds(1) > 0,
            parts=self._parts(look, key) if seat is None else {},
            alone_s=look.alone_s(key, rows) if seat is None else seat.times.seconds(rows),
            ended_s=self._ended_s.get(key, -math.inf),
        )

    def came(self, item: Waiting) -> None:
        if not self._only_waits(item):
            self.fill()

    def withdraw(self, item: Waiting) -> None:
        if item in self._aside:
            self._aside.remove(item)
            self._aside_of[item.key].count(item, -1)

    def ended(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """Executors learn for themselves."""
        self._ended_s[key] = now_s

    def _parts(self, look: Look, key: ModelKey) -> Parts:
        """How much of each model's work that waits is before a request; None where that is all of all."""
        parts = {other: look.part(key, other) * self._goes_on(other, key) for other in self._queue.models}
        return None if all(part == 1 for part in parts.values()) else parts

    def _goes_on(self, key: ModelKey, newcomers: ModelKey) -> float:
        """The part of a model's work that does not wait aside. Where all of it does, a newcomer of it will as well."""
        of_model, aside = self._queue.of_model(key), self._aside_of[key]
        if not aside.requests or (key == newcomers and aside.requests == of_model.requests):
            return 1.0
        return max(0.0, 1.0 - aside.work_s / of_model.work_s) if of_model.work_s else 0.0

    def _seat_now(self, look: Look, key: ModelKey, rows: int) -> Seat | None:
        """Where a newcomer begins at once: what waits of other models has been looked at, and left that one free."""
        if look.is_full or self._queue.of_model(key).requests or self._running.is_full(key):
            return None
        seat = look.seat(key, rows, self._max_rows, rows)
        return seat if not isinstance(seat, NoSeat) and seat.is_free else None

    def _only_waits(self, item: Waiting) -> bool:
        """Whether all is as it was found last but for a newcomer that waits behind all others.

        Time alone makes no executor that was free worth it: those who were busy have come closer to their end.
        """
        if self._settled is None or self._queue.last is not item or not self._is_one_level():
            return False
        rows = self._queue.of_model(item.key).rows
        return self._settled.waits(item.key, item.request.rows, rows, self._max_rows, comes=True)

    def _is_one_level(self) -> bool:
        return self._queue.of(self._queue.last.level).requests == len(self._queue)

    def fill(self) -> None:
        """Begins what is to begin now."""
        self._is_due = False
        self._settled = None
        if self._again is not None:
            self._again.cancel()
            self._again = None
        again_s = math.inf
        while self._queue:
            now_s = self._clock.monotonic_s()
            choice, seat, again_s = self._next(now_s)
            if not (choice.batch or choice.hopeless):
                break
            self._gate.begin(choice, now_s, seat)
        if self._queue and again_s < math.inf:
            self._again = self._clock.call_at(self._clock.monotonic_s() + again_s, self.fill)

    def _fill_soon(self) -> None:
        self._settled = None
        if not self._is_due and self._queue:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.fill)

    def _next(self, now_s: float) -> tuple[Choice, Seat | None, float]:
        """What is to begin now, and where; without a batch, in how many seconds to look again if nothing happens."""
        self._aside.clear()
        self._aside_of.clear()
        look = self._engine.look()
        if look.is_full:
            return _NOTHING, None, self._tell_bounded(look, now_s)
        again_s, waiting, full = math.inf, list(self._queue), self._running.full()
        while waiting:
            seats = _Seats(look, waiting, self._max_rows, self._running)
            choice = choose(
                waiting, seats, now_s=now_s, margin_s=self._margin.seconds, max_rows=self._max_rows, full=full
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
            look.hold(key, seat, choice.rows)
            held = self._held(look, choice, waiting, full)
            waiting = [item for item in waiting if item not in held]
        self._settled = look
        return _NOTHING, None, again_s

    def _held(
        self, look: Look, choice: Choice, waiting: Sequence[Waiting], full: AbstractSet[ModelKey]
    ) -> set[Waiting]:
        """A batch waits for its seat; who else waits with it, up to the first for whom another one may be free."""
        held, queue = set(choice.batch), self._queue
        for item in waiting if self._is_one_level() else sorted(waiting, key=level):
            if item in held:
                continue
            of_model = queue.of_model(item.key).rows
            if item.key not in full and not look.waits(item.key, item.request.rows, of_model, self._max_rows):
                break
            held.add(item)
        return held

    def _tell_bounded(self, look: Look, now_s: float) -> float:
        """Nothing begins now; who is beyond every budget, or runs nowhere, is told all the same."""
        again_s = math.inf
        for key in [key for key in self._queue.models if look.is_bounded(key)]:
            of_model = [item for item in self._queue if item.key == key]
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
                self._gate.refuse([item], none.error)
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

    def __init__(self, look: Look, waiting: Sequence[Waiting], max_rows: int, running: Running) -> None:
        super().__init__()
        self._look = look
        self._waiting = waiting
        self._max_rows = max_rows
        self._running = running
        self._found: dict[ModelKey, Seat | NoSeat] = {}

    def of(self, key: ModelKey) -> Seat | NoSeat:
        """Where the next batch of a model is to run."""
        if key in self._found:
            return self._found[key]
        of_model = [item for item in self._waiting if item.key == key]
        rows = sum(item.request.rows for item in of_model)
        # Where another model waits, it is that which the other executor is for.
        shares = len(of_model) == len(self._waiting) and not self._running.is_full(key, more=2)
        seat = self._look.seat(key, rows, self._max_rows, _least_rows(of_model), shares=shares)
        self._found[key] = seat
        return seat

    def __missing__(self, key: ModelKey) -> Times:
        seat = self.of(key)
        times = self[key] = _UNKNOWN if isinstance(seat, NoSeat) else seat.times
        return times
