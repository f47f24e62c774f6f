"""Whether a request may come in: at once, before it costs anything, and with a word that is kept.

Where a slot is free a request runs at once. Otherwise it has to pass, in this order:

1. Is there space for it to wait, of its client's and its level's (`shares.py`)?
2. Can its model do it in the time that it allows?
3. Will its turn come in time, before its client and its level take more than their share?
4. Does nobody who was let in before become late by it?

Whoever does not pass is refused in the same moment, with the time after which there should be room: a caller that
knows at once can still do something else, and no work is put into what nobody will wait for. Under overload this is
what keeps earliest-deadline-first from its collapse, in which every request is run and every one is late.

How long things take is learned (`batch_times.py`; several executors each know their own), and so is by how much that
is wrong (`margin.py`). Of a model that never ran nothing can be foreseen: 2 to 4 are not asked, and no more requests
with a deadline may wait for it than there are slots.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from firstline_core.errors import DeadlineExceededError, QueueFullError
from firstline_core.telemetry.wording import counted
from firstline_core.types import InferRequest, ModelKey
from firstline_gateway.executors.seating import Times
from firstline_gateway.serving.scheduling.course import Batches, Course
from firstline_gateway.serving.scheduling.margin import Margin
from firstline_gateway.serving.scheduling.shares import Shares
from firstline_gateway.serving.scheduling.waiting import AUDIT_LEVEL, Parts, Queue, Waiting, client_of, level_of

# When to come back where nothing tells.
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


class Before(NamedTuple):
    """What a newcomer finds before it.

    Args:
        course: of its model's work.
        known: whether anybody knows what its batches take.
        parts: how much of what waits, by model, is before it there.
        alone_s: that a batch of it takes where that is least.
        ended_s: when a batch of its model ended last.
    """

    course: Course
    known: bool
    parts: Parts
    alone_s: float
    ended_s: float


class Admission:
    """Decides over newcomers. Belongs to one event loop.

    Args:
        queue: what waits; only read here.
        bounds: how much may wait.
    """

    def __init__(self, queue: Queue, bounds: Bounds) -> None:
        self._queue = queue
        self._bounds = bounds
        self.shares = Shares()
        self.margin = Margin()

    def learn(self, item: Waiting, now_s: float) -> None:
        """A request is answered: as was foreseen? Of audits nothing was, and of no budget."""
        if item.level != AUDIT_LEVEL and not item.held_up:
            self.margin.learn(item.foreseen_s, now_s)

    def let_in(self, key: ModelKey, request: InferRequest, now_s: float, before: Before, *, idle: bool) -> Waiting:
        """Finds the request's place.

        Args:
            key: its model.
            request: with its deadline on the clock of `now_s`.
            now_s: the present.
            before: what runs and waits before it.
            idle: whether it begins at once.

        Raises:
            QueueFullError: there is no room; `retry_after_s` is when there should be.
            DeadlineExceededError: the model takes longer than the request allows.
        """
        self.shares.note(request.principal, level_of(request), now_s)
        latest_s = now_s + self._bounds.seconds if request.deadline_s is None else request.deadline_s
        rows, times = request.rows, before.course.times
        batch_rows = self._likely_batch_rows(key, rows, latest_s - now_s, times)
        if idle:
            ends_s = now_s + times.seconds(batch_rows)
            item = self._waiting(key, request, before, due_s=latest_s, latest_s=latest_s, foreseen_s=ends_s)
            # What is run is measured: a wrong estimate must not shut a model out for good.
            if now_s - before.ended_s <= _PROBE_PAUSES * item.alone_s:
                _check_possible(item, now_s)
            item.alone_s = 0.0  # it runs at once, whatever was thought of it
            return item
        batches = before.course.of(batch_rows)
        self._check_space(key, request, before, batches)
        if not before.known:
            self._check_unmeasured(key, request, before.course.slots)
        mine_s = self._queue.work_s(before.parts, client_of(request))
        due_s = request.deadline_s
        if due_s is None:
            # When its client's equal part of the machine would have it done.
            equally_s = batches.wait_s(self.shares.clients * (mine_s + times.seconds(rows)))
            due_s = now_s + min(self._bounds.seconds, equally_s)
        ahead_s, spare_s = self._queue.place(due_s, level_of(request), before.parts)
        done_s, speed = batches.done(ahead_s)
        work_s = rows * batches.seconds / batch_rows
        item = self._waiting(key, request, before, due_s=due_s, latest_s=latest_s, foreseen_s=now_s + done_s)
        item.work_s, item.delays_s = work_s, work_s / speed
        if before.known:
            _check_possible(item, now_s)
            self._check_turn(item, now_s, batches, done_s, mine_s)
            self._check_others(item, spare_s, done_s - batches.seconds)
        return item

    @staticmethod
    def _waiting(
        key: ModelKey, request: InferRequest, before: Before, *, due_s: float, latest_s: float, foreseen_s: float
    ) -> Waiting:
        return Waiting(
            key=key,
            request=request,
            level=level_of(request),
            size_bytes=request.size_bytes,
            due_s=due_s,
            latest_s=latest_s,
            work_s=0.0,
            alone_s=before.alone_s,
            foreseen_s=foreseen_s,
            answered=asyncio.get_running_loop().create_future(),
        )

    def _likely_batch_rows(self, key: ModelKey, rows: int, allowed_s: float, times: Times) -> int:
        """The batch that a request is likely to run in: what pays, waits, and leaves most of its time to wait."""
        most = min(times.worthwhile_rows(self._bounds.batch_rows), self._queue.of_model(key).rows + rows)
        while most > rows and times.seconds(most) > _BATCH_SHARE * allowed_s:
            most //= 2
        return max(rows, most)

    # The questions, in their order.

    def _check_space(self, key: ModelKey, request: InferRequest, before: Before, batches: Batches) -> None:
        """Whether there is space for it to wait: a number of requests of its model, bytes of all."""

        def retry_after_s() -> float:
            return batches.wait_s(self._queue.work_s(before.parts)) if before.known else _FIRST_RETRY_S

        level_share = self.shares.of_level(level_of(request))
        mine, of_model, of_all = self._queue.of(client_of(request)), self._queue.of_model(key), self._queue.of()
        if not self.shares.allows(mine.requests + 1, of_model.requests + 1, self._bounds.requests * level_share):
            raise QueueFullError(
                f"Model '{key.name}' has {counted(of_model.requests, 'request')} waiting already; come back later.",
                retry_after_s=retry_after_s(),
            )
        size_bytes = of_all.size_bytes + request.size_bytes
        # Where nothing waits, a request as large as may be asked at all comes in.
        if of_all.size_bytes and not self.shares.allows(
            mine.size_bytes, size_bytes, self._bounds.size_bytes * level_share
        ):
            raise QueueFullError(
                f"{of_all.size_bytes} bytes of requests wait already; come back later.", retry_after_s=retry_after_s()
            )

    def _check_unmeasured(self, key: ModelKey, request: InferRequest, slots: int) -> None:
        """Whether a request with a deadline may wait for a model that never ran."""
        if request.deadline_s is not None and self._queue.of_model(key).requests >= slots:
            raise QueueFullError(
                f"Nothing has run on model '{key.name}' yet that would tell whether this request can be answered in "
                "time, and others wait already; come back later.",
                retry_after_s=_FIRST_RETRY_S,
            )

    def _check_turn(self, item: Waiting, now_s: float, batches: Batches, done_s: float, mine_s: float) -> None:
        """Whether its turn comes in time, and its client and level have a right to the room until then.

        Room is time here: what the request allows, less its own batch and the margin. What waits before it fills a part
        of that, and of its client another; what runs takes some of it too, but is nobody's share.
        """
        first_s = batches.first_s
        room_s = self.margin.usable_s(item.latest_s - now_s - batches.seconds)
        room_s = self.shares.of_level(item.level) * room_s - (first_s - batches.seconds)
        if not self.shares.allows(batches.done(mine_s)[0] - first_s, done_s - first_s, room_s):
            raise QueueFullError(
                f"There are {done_s - batches.seconds:.3g} s of work before this request, which allows "
                f"{item.latest_s - now_s:.3g} s; come back later.",
                retry_after_s=max(0.0, done_s - first_s - max(0.0, room_s / self.shares.clients)),
            )

    def _check_others(self, item: Waiting, spare_s: float, wait_s: float) -> None:
        """Whether nobody behind it becomes late by it: all of them can be put off by `spare_s`."""
        if self.margin.usable_s(spare_s) < item.delays_s:
            raise QueueFullError(
                "Requests that came before this one would be late by it; come back later.",
                retry_after_s=max(0.0, wait_s, item.alone_s),
            )


def _check_possible(item: Waiting, now_s: float) -> None:
    """Whether the model can do it in the time that it allows, were it alone."""
    if item.request.deadline_s is not None and item.request.deadline_s - now_s < item.alone_s:
        raise DeadlineExceededError(
            f"The model takes some {item.alone_s:.3g} s for this request, which allows "
            f"{max(0.0, item.request.deadline_s - now_s):.3g} s; allow more time."
        )
