"""Whether a request may come in: at once, before it costs anything, and with a word that is kept.

A request is let in where what is known says that it will be done in time, and that nobody who was let in before becomes
late by it. Otherwise it is refused in the same moment, with the time after which there should be room: a caller that
knows at once can still do something else, and no work is put into what nobody will wait for. Under overload this is
what keeps earliest-deadline-first from its collapse, in which every request is run and every one is late.

How long things take is learned from the batches that ran (`batch_times.py`). What that leaves out (other work on the
machine, the event loop, requests larger than they seem) is learned as one number: by how much answers came later
than was foreseen, of 100 the 99th. Half of the room is kept free for it in any case: a machine that becomes twice as
slow from one moment to the next then makes few of those late who wait already, and as long as anybody waits it has
work all the same. Three quarters are the most: longer pauses cannot be provided for, only counted, and a machine that
has them would stand idle in between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from firstline_core.errors import DeadlineExceededError, QueueFullError
from firstline_core.routing.quantiles import DecayedQuantiles
from firstline_core.types import InferRequest
from firstline_gateway.executors.base import ModelKey
from firstline_gateway.scheduling.batch_times import BatchTimes
from firstline_gateway.scheduling.shares import Shares
from firstline_gateway.scheduling.waiting import AUDIT_LEVEL, Queue, Waiting, client_of, level_of

_MARGIN_QUANTILE = 0.99
_MARGIN_HALF_LIFE_COUNT, _MARGIN_HALF_LIFE_S = 200.0, 20.0
# Of the room, to the margin, whatever was learned.
_LEAST_MARGIN_SHARE, _MOST_MARGIN_SHARE = 0.5, 0.75
_FIRST_RETRY_S = 1.0
# Of what a request allows, to the batch that it is in; the rest is for its turn to come.
_BATCH_SHARE = 0.25
# On an idle machine a model that seems too slow is tried again after so many times what it takes.
_PROBE_PAUSES = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait.

    Args:
        requests: for one model.
        size_bytes: of tensors, all models together.
        seconds: that a request without a deadline may have to wait.
        batch_rows: the most that one batch takes.
    """

    requests: int
    size_bytes: int
    seconds: float
    batch_rows: int


class Admission:
    """Decides over newcomers. Belongs to one event loop.

    Args:
        queue: what waits; only read here.
        slots: batches that run at the same moment.
        bounds: how much may wait.
    """

    def __init__(self, queue: Queue, slots: int, bounds: Bounds) -> None:
        self._queue = queue
        self._slots = slots
        self._bounds = bounds
        self._overruns = DecayedQuantiles(_MARGIN_HALF_LIFE_COUNT, _MARGIN_HALF_LIFE_S)
        self.shares = Shares()
        self.times: defaultdict[ModelKey, BatchTimes] = defaultdict(BatchTimes)

    @property
    def margin_s(self) -> float:
        """What is added to every prediction."""
        return self._overruns.quantile(_MARGIN_QUANTILE) or 0.0

    def learn(self, item: Waiting, now_s: float) -> None:
        """A request is answered: how much later than was foreseen? Of audits nothing was."""
        if item.level != AUDIT_LEVEL:
            self._overruns.add(max(0.0, now_s - item.foreseen_s), now_s)

    def let_in(self, key: ModelKey, request: InferRequest, now_s: float, busy_s: float, *, idle: bool) -> Waiting:
        """Finds the request's place.

        Args:
            key: its model.
            request: with its deadline on the clock of `now_s`.
            now_s: the present.
            busy_s: seconds that the batches that run will still take, all together.
            idle: whether a slot is free and nothing waits.

        Raises:
            QueueFullError: there is no room; `retry_after_s` is when there should be.
            DeadlineExceededError: the model takes longer than the request allows.
        """
        self.shares.note(request.principal, level_of(request), now_s)
        times = self.times[key]
        if idle:
            item = self._at(now_s, key, request, now_s)
            # What is run is measured: a wrong estimate must not shut a model out for good.
            if now_s - times.ended_s <= _PROBE_PAUSES * item.alone_s:
                _check_possible(item, now_s)
            item.alone_s = 0.0  # it runs at once, whatever was thought of it
            return item
        waits_s = (busy_s + self._queue.of().seconds) / self._slots if times.known else _FIRST_RETRY_S
        self._check_size(key, request, waits_s)
        if not times.known:
            self._check_unknown(key, request)
        due_s = self._due_s(key, request, now_s, busy_s)
        ahead_s, spare_s = self._queue.place(due_s, level_of(request))
        begins_s = now_s + (busy_s + ahead_s) / self._slots
        item = self._at(begins_s, key, request, now_s, due_s)
        if times.known:
            _check_possible(item, now_s)
            self._check_room(item, now_s, ahead_s / self._slots, begins_s)
            self._check_spare(item, spare_s, begins_s - now_s)
        return item

    def _at(
        self, begins_s: float, key: ModelKey, request: InferRequest, now_s: float, due_s: float | None = None
    ) -> Waiting:
        times = self.times[key]
        latest_s = now_s + self._bounds.seconds if request.deadline_s is None else request.deadline_s
        batch_rows = self._batch_rows(key, request.rows, latest_s - now_s)
        return Waiting(
            key=key,
            request=request,
            level=level_of(request),
            size_bytes=request.size_bytes,
            due_s=latest_s if due_s is None else due_s,
            latest_s=latest_s,
            seconds=request.rows * times.seconds(batch_rows) / batch_rows,
            alone_s=times.seconds(request.rows),
            foreseen_s=begins_s + times.seconds(batch_rows),
            answered=asyncio.get_running_loop().create_future(),
        )

    def _due_s(self, key: ModelKey, request: InferRequest, now_s: float, busy_s: float) -> float:
        if request.deadline_s is not None:
            return request.deadline_s
        mine_s = self._queue.of(client_of(request)).seconds + self.times[key].seconds(request.rows)
        return now_s + min(self._bounds.seconds, (busy_s + self.shares.clients * mine_s) / self._slots)

    def _less_margin(self, seconds: float) -> float:
        room_s = max(0.0, seconds)
        return seconds - min(max(self.margin_s, _LEAST_MARGIN_SHARE * room_s), _MOST_MARGIN_SHARE * room_s)

    def _batch_rows(self, key: ModelKey, rows: int, allowed_s: float) -> int:
        """The batch that a request is likely to run in: what pays, waits, and leaves most of its time to wait."""
        times = self.times[key]
        most = min(times.worthwhile_rows(self._bounds.batch_rows), self._queue.of(key).rows + rows)
        while most > rows and times.seconds(most) > _BATCH_SHARE * allowed_s:
            most //= 2
        return max(rows, most)

    def _check_size(self, key: ModelKey, request: InferRequest, waits_s: float) -> None:
        share = self.shares.of_level(level_of(request))
        mine, of_model = self._queue.of(client_of(request)), self._queue.of(key).requests
        if not self.shares.allows(mine.requests + 1, of_model + 1, self._bounds.requests * share):
            raise QueueFullError(
                f"{of_model} requests wait for model '{key.name}' already; come back later.", retry_after_s=waits_s
            )
        taken = self._queue.of().size_bytes
        more = taken + request.size_bytes
        if taken and not self.shares.allows(mine.size_bytes, more, self._bounds.size_bytes * share):
            raise QueueFullError(f"{taken} bytes of requests wait already; come back later.", retry_after_s=waits_s)

    def _check_unknown(self, key: ModelKey, request: InferRequest) -> None:
        if request.deadline_s is not None and self._queue.of(key).requests >= self._slots:
            raise QueueFullError(
                f"Nothing has run on model '{key.name}' yet that would tell whether this request can be answered in "
                "time, and others wait already; come back later.",
                retry_after_s=_FIRST_RETRY_S,
            )

    def _check_room(self, item: Waiting, now_s: float, ahead_s: float, begins_s: float) -> None:
        """Whether what waits before it leaves it the time that it needs, and its client and level the right to it."""
        batch_s = item.foreseen_s - begins_s
        whole_s = self.shares.of_level(item.level) * self._less_margin(item.latest_s - now_s - batch_s)
        room_s = whole_s - (begins_s - now_s - ahead_s)  # what runs is nobody's share
        mine_s = self._queue.of(client_of(item.request)).seconds / self._slots
        if not self.shares.allows(mine_s, ahead_s, room_s):
            raise QueueFullError(
                f"There are {begins_s - now_s:.3g} s of work before this request, which allows "
                f"{item.latest_s - now_s:.3g} s; come back later.",
                retry_after_s=max(0.0, ahead_s - max(0.0, room_s / self.shares.clients)),
            )

    def _check_spare(self, item: Waiting, spare_s: float, wait_s: float) -> None:
        """Whether nobody behind it becomes late by it."""
        if self._less_margin(spare_s) < item.seconds / self._slots:
            raise QueueFullError(
                "Requests that came before this one would be late by it; come back later.",
                retry_after_s=max(wait_s, item.alone_s),
            )


def _check_possible(item: Waiting, now_s: float) -> None:
    if item.request.deadline_s is not None and item.request.deadline_s - now_s < item.alone_s:
        raise DeadlineExceededError(
            f"The model takes some {item.alone_s:.3g} s for this request, which allows "
            f"{max(0.0, item.request.deadline_s - now_s):.3g} s; allow more time."
        )
