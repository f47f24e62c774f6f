"""What runs next: which request first, and which others with it. Pure decisions on the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from firstline_gateway.executors.base import ModelKey
from firstline_gateway.scheduling.batch_times import BatchTimes
from firstline_gateway.scheduling.waiting import AUDIT_LEVEL, Queue, Waiting


class Choice(NamedTuple):
    """What to take out of the queue now."""

    batch: list[Waiting]  # of one model, in order of due time after the first
    hopeless: list[Waiting]  # they cannot be done by their deadline any more, so they are not begun


def choose(
    queue: Queue, times: Mapping[ModelKey, BatchTimes], *, now_s: float, margin_s: float, max_rows: int
) -> Choice:
    """The next batch. What is passed over for it is foreseen to be done so much later.

    Args:
        queue: what waits, not changed.
        times: of every model in it.
        now_s: the present.
        margin_s: what predictions are usually late by.
        max_rows: of a batch; a larger request is a batch of its own.

    Returns:
        An empty batch where nothing waits but what is hopeless.
    """
    hopeless = [item for item in queue if item.request.deadline_s is not None and item.latest_s < now_s + item.alone_s]
    candidates = [item for item in queue if item not in hopeless] if hopeless else list(queue)
    if not candidates:
        return Choice([], hopeless)
    first = _first(candidates, times, margin_s)
    return Choice(_filled(first, candidates, times[first.key], now_s + margin_s, max_rows), hopeless)


def _first(candidates: list[Waiting], times: Mapping[ModelKey, BatchTimes], margin_s: float) -> Waiting:
    """The earliest of the highest level, unless it would make somebody late whose turn is before it."""
    highest = min(candidates, key=lambda item: item.level)
    delay_s = times[highest.key].seconds(highest.request.rows)
    passed = candidates[: candidates.index(highest)]
    if any(item.spare_s < delay_s + margin_s for item in passed):
        return candidates[0]
    for item in passed:
        item.foreseen_s += delay_s
    return highest


def _filled(
    first: Waiting, candidates: list[Waiting], times: BatchTimes, begins_s: float, max_rows: int
) -> list[Waiting]:
    """The batch of `first`: as many rows as pay, as long as nobody in it or passed over for it becomes late."""
    batch, rows = [first], first.request.rows
    most_rows = times.worthwhile_rows(max_rows)
    latest_s = first.latest_s
    passed: list[Waiting] = []
    put_off_s, spare_s = 0.0, float("inf")
    for item in candidates:
        if item is first or rows >= most_rows:
            continue
        if item.key != first.key:
            passed.append(item)
            if item.spare_s >= 0:  # what is late already is not made late by this
                spare_s = min(spare_s, item.spare_s)
            continue
        more_rows = rows + item.request.rows
        more_s = max(0.0, times.seconds(more_rows) - times.seconds(rows)) if passed else 0.0
        latest_s = min(latest_s, item.latest_s if item.level != AUDIT_LEVEL else latest_s)
        if (
            more_rows > most_rows
            or begins_s + times.seconds(more_rows) > latest_s
            or (passed and put_off_s + more_s > spare_s)
        ):
            break
        batch.append(item)
        rows, put_off_s = more_rows, put_off_s + more_s
    for item in passed:
        item.foreseen_s += put_off_s
    return batch
