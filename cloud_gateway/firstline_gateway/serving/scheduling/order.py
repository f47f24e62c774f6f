"""The order in which requests run: the choice of the next batch. Pure.

A request with a deadline is due then: earliest deadline first meets all deadlines if any order does (Jackson, 1955).
One without a deadline is due when its client's fair share of the machine would complete it, as in weighted fair
queueing (Demers, Keshav and Shenker, 1989): a client with little waiting goes before one with much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.placement import Times
from firstline_gateway.serving.scheduling.admission import AUDIT_LEVEL, PendingRequest

_level = attrgetter("level")


class Choice(NamedTuple):
    """The requests to take out of the queue now."""

    batch: list[PendingRequest]  # of one model, the first first
    too_late: list[PendingRequest]  # they cannot complete by their deadline, so they are not started

    def note_delays(self, waiting: Sequence[PendingRequest]) -> None:
        """Notes the delay of requests outside of the batch that are due before some of its requests."""
        batch, later_s = set(self.batch), 0.0
        for item in reversed(waiting):
            if item in batch:
                later_s += item.work_s
            else:
                item.predicted_s += later_s


class _Room(NamedTuple):
    """The bounds of a batch: its times, its rows, when it begins, and by how much it may delay other models."""

    times: Times
    max_rows: int
    begins_s: float
    others_slack_s: float


def choose_batch(
    waiting: Sequence[PendingRequest],
    times: Mapping[ModelKey, Times],
    *,
    now_s: float,
    margin_s: float,
    max_rows: int,
) -> Choice:
    """Returns the next batch: earliest deadline first, and as many rows of that model as gain by it.

    A batch is filled by level if requests of its model that are due earlier can wait for the next one. It grows while
    it makes no request late, be it in the batch or of another model.

    Args:
        waiting: the requests that may run, by due time.
        times: of each model, where its next batch is placed.
        now_s: the present.
        margin_s: the usual delay of predictions.
        max_rows: of a batch; a larger request is a batch of its own.

    Returns:
        An empty batch if every request is too late.
    """
    too_late = [item for item in waiting if item.start_by_s < now_s]
    if too_late:
        waiting = [item for item in waiting if item.start_by_s >= now_s]
    if len(waiting) < 2:
        return Choice(list(waiting), too_late)
    first = _first(waiting, times, now_s, margin_s)
    by_due = [item for item in waiting if item.key == first.key and item is not first]
    slack_s = [item.slack_s for item in waiting if item.key != first.key] if len(by_due) + 1 < len(waiting) else []
    others_slack_s = min([each for each in slack_s if each >= 0], default=math.inf)
    room = _Room(times[first.key], max_rows, now_s + margin_s, others_slack_s)
    if any(item.level != first.level for item in by_due):
        batch = _filled(first, by_level(by_due), room)
        batch_s = room.times.seconds(row_sum(batch)) + margin_s
        last = max((at for at, item in enumerate(by_due) if item in batch), default=0)
        if not any(0 <= item.slack_s < batch_s for item in by_due[:last] if item not in batch):
            return Choice(batch, too_late)
    return Choice(_filled(first, by_due, room), too_late)


def _first(
    waiting: Sequence[PendingRequest], times: Mapping[ModelKey, Times], now_s: float, margin_s: float
) -> PendingRequest:
    """Returns the first request of the batch.

    It is the earliest due request of the highest level. If that one would make an earlier due request late, it is the
    earliest due request of all. A request that its placement would complete too late is first only if all are late: a
    better executor may become free.
    """
    in_time, key, rows, ends_s = [], None, 0, 0.0
    for item in waiting:
        if item.key is not key or item.rows != rows:  # most requests are of the model and the rows of the one before
            key, rows = item.key, item.rows
            ends_s = now_s + times[key].seconds(rows)
        if ends_s <= item.latest_s:
            in_time.append(item)
    in_time = in_time or list(waiting)
    highest = min(in_time, key=_level)
    delay_s = times[highest.key].seconds(highest.rows) + margin_s
    passed = in_time[: in_time.index(highest)]
    return in_time[0] if any(item.slack_s < delay_s for item in passed) else highest


def _filled(first: PendingRequest, fitting: Sequence[PendingRequest], room: _Room) -> list[PendingRequest]:
    """Returns the largest batch of the first request and of those that follow which makes no request late."""
    times, worthwhile_rows = room.times, room.times.worthwhile_rows(room.max_rows)
    batch, rows = [first], first.rows
    for item in fitting:
        if rows + item.rows > worthwhile_rows:
            break
        batch.append(item)
        rows += item.rows
    least_s = times.seconds(first.rows)
    while len(batch) > 1:
        seconds = times.seconds(rows)
        latest_s = min([item.latest_s for item in batch if item is first or item.level != AUDIT_LEVEL])
        if room.begins_s + seconds <= latest_s and seconds - least_s <= room.others_slack_s:
            break
        rows -= batch.pop().rows
    return batch


def by_level(items: Iterable[PendingRequest]) -> list[PendingRequest]:
    """Returns requests by level, those of one level in their order."""
    return sorted(items, key=_level)


def row_sum(items: Iterable[PendingRequest]) -> int:
    """Returns the rows of requests."""
    return sum([item.rows for item in items])


def batch_from_end(items: Sequence[PendingRequest], times: Times, max_rows: int, now_s: float) -> list[PendingRequest]:
    """Returns a batch for an executor that was idle: of those that are due last, and are in time there.

    Args:
        items: of one model, by due time.
        times: of the executor, with its most rows.
        max_rows: of a batch.
        now_s: the present.
    """
    found: list[PendingRequest] = []
    rows = 0
    for item in reversed(by_level(items)):
        more_rows = rows + item.rows
        if found and more_rows > times.worthwhile_rows(max_rows):
            break
        if item.slack_s < 0 or now_s + times.seconds(more_rows) <= item.latest_s:
            found.append(item)
            rows = more_rows
    return found[::-1]
