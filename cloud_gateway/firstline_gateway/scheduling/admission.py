"""Whether a request may come in: at once, before it costs anything, and with a word that is kept.

A request is let in where what is known says that it will be done in time, and that nobody who was let in before becomes
late by it. Otherwise it is refused in the same moment, with the time after which there should be room: a caller that
knows at once can still do something else, and no work is put into what nobody will wait for. Under overload this is
what keeps earliest-deadline-first from its collapse, in which every request is run and every one is late.

How long things take is learned from the batches that ran (`batch_times.py`). What that leaves out (other work on the
machine, the event loop, requests larger than they seem) is learned as one number: by how much answers came later
than was foreseen, of 100 the 99th.
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
from firstline_gateway.scheduling.shares import Shares, level_of
from firstline_gateway.scheduling.waiting import Queue, Tally, Waiting

_MARGIN_QUANTILE = 0.99
_MARGIN_HALF_LIFE_COUNT, _MARGIN_HALF_LIFE_S = 200.0, 20.0
_FIRST_RETRY_S = 1.0
# What cannot be in time is run all the same after so many times its length in which nothing of the model ran.
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
        queue: what waits; read here, and changed by `let_in` alone.
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
        """A request is answered: how much later than was foreseen?"""
        self._overruns.add(max(0.0, now_s - item.foreseen_s), now_s)

    def let_in(self, key: ModelKey, request: InferRequest, now_s: float, busy_s: float, *, idle: bool) -> Waiting:
        """Gives the request its place.

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
        level = level_of(request)
        self.shares.note(request.principal, level, now_s)
        size_bytes = request.size_bytes
        times = self.times[key]
        alone_s = times.seconds(request.rows)
        seconds = self._marginal_s(times, key, request.rows)
        mine = self._queue.of(request.principal)
        latest_s = now_s + self._bounds.seconds if request.deadline_s is None else request.deadline_s
        due_s = latest_s
        if request.deadline_s is None:
            fair_s = self.shares.clients * (mine.seconds + seconds)
            due_s = min(latest_s, now_s + (busy_s + fair_s) / self._slots)
        ahead_s, spare_s = self._queue.place(due_s)
        wait_s = 0.0 if idle else (busy_s + ahead_s) / self._slots
        if idle:
            self._check_possible(times, request, alone_s, now_s)
        else:
            share = self.shares.of_level(level)
            drained_s = (busy_s + self._queue.of().seconds) / self._slots if times.known else _FIRST_RETRY_S
            self._check_size(key, mine, size_bytes, share, drained_s)
            if times.known:
                left_s = latest_s - now_s
                if left_s < alone_s:
                    raise _impossible(alone_s, left_s)
                allowed_s = share * (left_s - alone_s - self.margin_s)
                self._check_wait(wait_s, allowed_s, mine.seconds / self._slots, left_s)
                if spare_s - self.margin_s < seconds / self._slots:
                    raise QueueFullError(
                        "Requests that came before this one would be late by it; come back later.",
                        retry_after_s=max(wait_s, alone_s),
                    )
            elif request.deadline_s is not None and self._queue.of(key).rows >= self._bounds.batch_rows:
                raise QueueFullError(
                    f"Nothing has run on model '{key.name}' yet that would tell whether this request can be answered in "
                    "time, and others wait already; come back later.",
                    retry_after_s=_FIRST_RETRY_S,
                )
        return Waiting(
            key=key,
            request=request,
            level=level,
            size_bytes=size_bytes,
            due_s=due_s,
            latest_s=latest_s,
            seconds=seconds,
            alone_s=0.0 if idle else alone_s,  # it runs at once, whatever is thought of it
            foreseen_s=now_s + wait_s + alone_s,
            answered=asyncio.get_running_loop().create_future(),
        )

    def _marginal_s(self, times: BatchTimes, key: ModelKey, rows: int) -> float:
        """What the request adds, in batches as they are likely to be made of what waits."""
        batch_rows = min(times.worthwhile_rows(self._bounds.batch_rows), self._queue.of(key).rows + rows)
        return rows * times.seconds(batch_rows) / batch_rows

    def _check_possible(self, times: BatchTimes, request: InferRequest, alone_s: float, now_s: float) -> None:
        """On an idle machine only what the model cannot do in time is refused, and now and then not even that.

        What is run is measured: a wrong estimate must not shut a model out for good. A tenth of the idle time goes on it.
        """
        if request.deadline_s is None or now_s - times.ended_s > _PROBE_PAUSES * alone_s:
            return
        if (left_s := request.deadline_s - now_s) < alone_s:
            raise _impossible(alone_s, left_s)

    def _check_size(self, key: ModelKey, mine: Tally, size_bytes: int, share: float, drained_s: float) -> None:
        of_model = self._queue.of(key).requests
        if not self.shares.allows(mine.requests, of_model, self._bounds.requests * share):
            raise QueueFullError(
                f"{of_model} requests wait for model '{key.name}' already; come back later.", retry_after_s=drained_s
            )
        taken = self._queue.of().size_bytes
        if taken and not self.shares.allows(mine.size_bytes, taken + size_bytes - 1, self._bounds.size_bytes * share):
            raise QueueFullError(f"{taken} bytes of requests wait already; come back later.", retry_after_s=drained_s)

    def _check_wait(self, wait_s: float, allowed_s: float, mine_s: float, left_s: float) -> None:
        if not self.shares.allows(mine_s, wait_s, allowed_s):
            alone = self.shares.clients == 1
            raise QueueFullError(
                f"There are {wait_s:.3g} s of work before this request, too much for the {left_s:.3g} s that it allows; "
                "come back later.",
                retry_after_s=max(0.0, wait_s + (0.0 if alone else mine_s) - max(0.0, allowed_s)),
            )


def _impossible(alone_s: float, left_s: float) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"The model takes some {alone_s:.3g} s for this request, and it allows {max(0.0, left_s):.3g} s; allow more time."
    )
