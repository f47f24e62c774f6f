"""The next batch: its first request, and the others with it. Pure decisions on the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.placement import Times
from firstline_gateway.serving.scheduling.pending import AUDIT_LEVEL, PendingRequest


class Choice(NamedTuple):
    """The requests to take out of the queue now."""

    batch: list[PendingRequest]  # of one model, the first first
    hopeless: list[PendingRequest]  # they cannot complete by their deadline, so they are not started
    put_off: list[tuple[PendingRequest, float]]  # passed over for the batch, and the seconds of delay

    @property
    def rows(self) -> int:
        return sum(item.request.rows for item in self.batch)


def choose(
    queue: Iterable[PendingRequest],
    times: Mapping[ModelKey, Times],
    *,
    now_s: float,
    margin_s: float,
    max_rows: int,
    full: AbstractSet[ModelKey] = frozenset(),
) -> Choice:
    """Returns the next batch.

    Args:
        queue: the requests that wait, by due time.
        times: of every model in it.
        now_s: the present.
        margin_s: the usual delay of predictions.
        max_rows: of a batch; a larger request is a batch of its own.
        full: models at their limit of batches, whose requests keep waiting.

    Returns:
        An empty batch if only hopeless requests wait, or requests of models at their limit.
    """
    candidates = list(queue)
    hopeless = [each for each in candidates if each.request.deadline_s is not None and _is_hopeless(each, now_s)]
    if hopeless:
        gone = set(hopeless)
        candidates = [item for item in candidates if item not in gone]
    if full:
        candidates = [item for item in candidates if item.key not in full]
    if not candidates:
        return Choice([], hopeless, [])
    first, put_off = _first(candidates, times, margin_s)
    begins_s, most_rows = now_s + margin_s, times[first.key].worthwhile_rows(max_rows)
    by_due = [item for item in candidates if item.key == first.key and item is not first]
    by_level = sorted(by_due, key=level)
    spare_s = {id(item): item.spare_s for item in candidates} | {id(item): item.spare_s - s for item, s in put_off}
    fill = partial(_filled, first, candidates=candidates, spare_s=spare_s, times=times[first.key])
    filled = fill(by_due, begins_s=begins_s, most_rows=most_rows)
    if by_level != by_due:
        other = fill(by_level, begins_s=begins_s, most_rows=most_rows)
        # A level never delays other models.
        if len(other.passed) <= len(filled.passed):
            left = _left(other, by_due)
            # Requests of its model that are due earlier wait for the next batch, if they can.
            if not any(0 <= spare_s[id(item)] < times[first.key].seconds(other.rows) + margin_s for item in left):
                filled = other
                put_off += [(item, _due_later_s(other, item)) for item in left]
    put_off += [(item, filled.put_off_s) for item in filled.passed]
    return Choice(filled.batch, hopeless, put_off)


def _is_hopeless(item: PendingRequest, now_s: float) -> bool:
    return item.latest_s < now_s + item.alone_s


def _first(
    candidates: list[PendingRequest], times: Mapping[ModelKey, Times], margin_s: float
) -> tuple[PendingRequest, list[tuple[PendingRequest, float]]]:
    """Returns the earliest of the highest level, or the earliest of all if the former would make one before it late."""
    highest = min(candidates, key=level)
    delay_s = times[highest.key].seconds(highest.request.rows)
    passed = candidates[: candidates.index(highest)]
    if any(item.spare_s < delay_s + margin_s for item in passed):
        return candidates[0], []
    return highest, [(item, delay_s) for item in passed]


class _Filled(NamedTuple):
    batch: list[PendingRequest]
    rows: int
    passed: list[PendingRequest]  # of other models, due before a request of the batch
    put_off_s: float  # the delay of those


def _filled(
    first: PendingRequest,
    fitting: list[PendingRequest],
    *,
    candidates: list[PendingRequest],
    spare_s: Mapping[int, float],
    times: Times,
    begins_s: float,
    most_rows: int,
) -> _Filled:
    """Returns the batch of `first`: as many rows as gain by it, while no request becomes late.

    Args:
        first: the first request, which always runs.
        fitting: of its model, in the order in which to take them.
        candidates: of all models, by due time.
        spare_s: by the identity of each, the delay that it tolerates.
        times: of its model.
        begins_s: the present, plus the usual delay of predictions.
        most_rows: that gain by being a batch.
    """
    turns = {id(item): turn for turn, item in enumerate(candidates)}
    others = [item for item in candidates if item.key != first.key]
    batch, rows, latest_s = [first], first.request.rows, first.latest_s
    put_off_s, least_s, passed = 0.0, float("inf"), 0
    for item in fitting:
        if rows >= most_rows:
            break
        while passed < len(others) and turns[id(others[passed])] < turns[id(item)]:
            if (left_s := spare_s[id(others[passed])]) >= 0:  # a late request does not become late by this
                least_s = min(least_s, left_s)
            passed += 1
        more_rows = rows + item.request.rows
        more_s = max(0.0, times.seconds(more_rows) - times.seconds(rows)) if passed else 0.0
        latest_s = min(latest_s, item.latest_s if item.level != AUDIT_LEVEL else latest_s)
        if (
            more_rows > most_rows
            or begins_s + times.seconds(more_rows) > latest_s
            or (passed and put_off_s + more_s > least_s)
        ):
            break
        batch.append(item)
        rows, put_off_s = more_rows, put_off_s + more_s
    return _Filled(batch, rows, others[:passed], put_off_s)


def _left(filled: _Filled, by_due: list[PendingRequest]) -> list[PendingRequest]:
    """Returns the requests of its model that are due earlier than others in it, and are not in it."""
    taken = {id(item) for item in filled.batch}
    latest = max((at for at, item in enumerate(by_due) if id(item) in taken), default=0)
    return [item for item in by_due[:latest] if id(item) not in taken]


def _due_later_s(filled: _Filled, item: PendingRequest) -> float:
    """Returns the work of the requests that are due later and run earlier."""
    return sum(each.work_s for each in filled.batch if each.due_s > item.due_s)


def level(item: PendingRequest) -> int:
    return item.level
