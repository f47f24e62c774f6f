"""What runs next: which request first, and which others with it. Pure decisions on the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.placement import Times
from firstline_gateway.serving.scheduling.pending import AUDIT_LEVEL, PendingRequest


class Choice(NamedTuple):
    """What to take out of the queue now."""

    batch: list[PendingRequest]  # of one model, the first first
    hopeless: list[PendingRequest]  # they cannot be done by their deadline any more, so they are not begun
    put_off: list[tuple[PendingRequest, float]]  # what is passed over for it, and by how many seconds it is done later

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
    """The next batch.

    Args:
        queue: what waits, by due time.
        times: of every model in it.
        now_s: the present.
        margin_s: what predictions are usually late by.
        max_rows: of a batch; a larger request is a batch of its own.
        full: models that run as many batches as they may; what waits for them waits on.

    Returns:
        An empty batch where nothing waits but what is hopeless, or for models that are full.
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
        # Other models are not put off for the sake of a level.
        if len(other.passed) <= len(filled.passed):
            left = _left(other, by_due)
            # Those of its model that are left out, though they are due earlier, wait for the next batch where they can.
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
    """The earliest of the highest level, unless it would make somebody late whose turn is before it; see `Choice`."""
    highest = min(candidates, key=level)
    delay_s = times[highest.key].seconds(highest.request.rows)
    passed = candidates[: candidates.index(highest)]
    if any(item.spare_s < delay_s + margin_s for item in passed):
        return candidates[0], []
    return highest, [(item, delay_s) for item in passed]


class _Filled(NamedTuple):
    batch: list[PendingRequest]
    rows: int
    passed: list[PendingRequest]  # of other models, due before one of it
    put_off_s: float  # by what those are done later


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
    """The batch of `first`: as many rows as pay, as long as nobody in it or of another model becomes late.

    Args:
        first: what is run in any case.
        fitting: of its model, in the order in which they are to be taken.
        candidates: of all models, by due time.
        spare_s: by the identity of each, what it can be put off by.
        times: of its model.
        begins_s: the present, and what predictions are usually late by.
        most_rows: that pay.
    """
    turns = {id(item): turn for turn, item in enumerate(candidates)}
    others = [item for item in candidates if item.key != first.key]
    batch, rows, latest_s = [first], first.request.rows, first.latest_s
    put_off_s, least_s, passed = 0.0, float("inf"), 0
    for item in fitting:
        if rows >= most_rows:
            break
        while passed < len(others) and turns[id(others[passed])] < turns[id(item)]:
            if (left_s := spare_s[id(others[passed])]) >= 0:  # what is late already is not made late by this
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
    """Those of its model that are due earlier than others in it, and are not in it."""
    taken = {id(item) for item in filled.batch}
    latest = max((at for at, item in enumerate(by_due) if id(item) in taken), default=0)
    return [item for item in by_due[:latest] if id(item) not in taken]


def _due_later_s(filled: _Filled, item: PendingRequest) -> float:
    """The work of what is due after it, and goes before it."""
    return sum(each.work_s for each in filled.batch if each.due_s > item.due_s)


def level(item: PendingRequest) -> int:
    return item.level
