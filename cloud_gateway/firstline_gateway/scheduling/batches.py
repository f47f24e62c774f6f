"""What runs next: which request first, and which others with it. Pure decisions on the queue."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from firstline_gateway.executors.base import ModelKey
from firstline_gateway.scheduling.batch_times import BatchTimes
from firstline_gateway.scheduling.waiting import AUDIT_LEVEL, Queue, Waiting


class Choice(NamedTuple):
    """What to take out of the queue now."""

    batch: list[Waiting]  # of one model, the first first
    hopeless: list[Waiting]  # they cannot be done by their deadline any more, so they are not begun


def choose(
    queue: Queue,
    times: Mapping[ModelKey, BatchTimes],
    *,
    now_s: float,
    margin_s: float,
    max_rows: int,
    full: AbstractSet[ModelKey] = frozenset(),
) -> Choice:
    """The next batch. What is passed over for it is foreseen to be done so much later.

    Args:
        queue: what waits, not changed.
        times: of every model in it.
        now_s: the present.
        margin_s: what predictions are usually late by.
        max_rows: of a batch; a larger request is a batch of its own.
        full: models that run as many batches as they may; what waits for them waits on.

    Returns:
        An empty batch where nothing waits but what is hopeless, or for models that are full.
    """
    hopeless = [item for item in queue if item.request.deadline_s is not None and item.latest_s < now_s + item.alone_s]
    candidates = [item for item in queue if item not in hopeless] if hopeless else list(queue)
    if full:
        candidates = [item for item in candidates if item.key not in full]
    if not candidates:
        return Choice([], hopeless)
    first = _first(candidates, times, margin_s)
    begins_s, most_rows = now_s + margin_s, times[first.key].worthwhile_rows(max_rows)
    by_due = [item for item in candidates if item.key == first.key and item is not first]
    by_level = sorted(by_due, key=_level)
    filled = _filled(first, by_due, candidates, times[first.key], begins_s=begins_s, most_rows=most_rows)
    if by_level != by_due:
        other = _filled(first, by_level, candidates, times[first.key], begins_s=begins_s, most_rows=most_rows)
        # Other models are not put off for the sake of a level.
        if len(other.passed) <= len(filled.passed) and _may_pass(other, by_due, times[first.key], margin_s):
            filled = other
    for item in filled.passed:
        item.foreseen_s += filled.put_off_s
    return Choice(filled.batch, hopeless)


def _first(candidates: list[Waiting], times: Mapping[ModelKey, BatchTimes], margin_s: float) -> Waiting:
    """The earliest of the highest level, unless it would make somebody late whose turn is before it."""
    highest = min(candidates, key=_level)
    delay_s = times[highest.key].seconds(highest.request.rows)
    passed = candidates[: candidates.index(highest)]
    if any(item.spare_s < delay_s + margin_s for item in passed):
        return candidates[0]
    for item in passed:
        item.foreseen_s += delay_s
    return highest


class _Filled(NamedTuple):
    batch: list[Waiting]
    rows: int
    passed: list[Waiting]  # of other models, due before one of it
    put_off_s: float  # by what those are done later


def _filled(
    first: Waiting,
    fitting: list[Waiting],
    candidates: list[Waiting],
    times: BatchTimes,
    *,
    begins_s: float,
    most_rows: int,
) -> _Filled:
    """The batch of `first`: as many rows as pay, as long as nobody in it or of another model becomes late.

    Args:
        first: what is run in any case.
        fitting: of its model, in the order in which they are to be taken.
        candidates: of all models, by due time.
        times: of its model.
        begins_s: the present, and what predictions are usually late by.
        most_rows: that pay.
    """
    turns = {id(item): turn for turn, item in enumerate(candidates)}
    others = [item for item in candidates if item.key != first.key]
    batch, rows, latest_s = [first], first.request.rows, first.latest_s
    put_off_s, spare_s, passed = 0.0, float("inf"), 0
    for item in fitting:
        if rows >= most_rows:
            break
        while passed < len(others) and turns[id(others[passed])] < turns[id(item)]:
            if others[passed].spare_s >= 0:  # what is late already is not made late by this
                spare_s = min(spare_s, others[passed].spare_s)
            passed += 1
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
    return _Filled(batch, rows, others[:passed], put_off_s)


def _may_pass(filled: _Filled, by_due: list[Waiting], times: BatchTimes, margin_s: float) -> bool:
    """Whether those of its model that are due earlier, and left out, can wait for the next batch. Then they will."""
    taken = {id(item) for item in filled.batch}
    latest = max((at for at, item in enumerate(by_due) if id(item) in taken), default=0)
    left = [item for item in by_due[:latest] if id(item) not in taken]
    if any(0 <= item.spare_s < times.seconds(filled.rows) + margin_s for item in left):
        return False
    for item in left:
        item.foreseen_s += sum(each.work_s for each in filled.batch if each.due_s > item.due_s)
    return True


def _level(item: Waiting) -> int:
    return item.level
