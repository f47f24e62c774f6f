"""Predictions for a batch on an executor (the wait, and the time in the slot) and for waiting work. Pure.

The usual seconds of a model's batches come from a profile, or from the measurement when the model was loaded; otherwise
the first batches tell. The pace is the ratio of observed to expected time: 1 as usual, 3 if everything takes three
times as long. It is one number for all sizes, so that one batch of any size shows a machine that has become slow.

The rest of an error belongs to the size: the profile's machine may have gained less by batches than this one does.
Each size learns it as from a sample in which the earlier knowledge counts as a few batches. So it outweighs a wrong
profile, while a slow moment, which all sizes share and which ends, leaves little behind.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from firstline_core.runtime.batch_times import BatchTimes, size_of
from firstline_core.types import ModelKey

# Weight of the newest batch where the one before has just ended; and the time in which what is known halves in worth.
_NEWEST, _HALF_LIFE_S = 0.2, 2.0
# No batch shows more than that it took so many times what was expected: one hiccup moves no traffic for long.
_HICCUP = 4.0
# Batches of one size that establish the usual time, if nothing else does; as many of them outweigh earlier knowledge,
# and the newest never counts less than one of so many.
_LEARNING, _MOST = 8, 64

E = TypeVar("E", bound=Hashable)


class Forecast:
    """The times of one model's batches on one executor.

    Args:
        seconds: measured seconds of batches, by rows; empty if none was measured.
        batch: see `BatchTimes`.
    """

    def __init__(self, seconds: Mapping[int, float], batch: int | None = None) -> None:
        self._usual = BatchTimes(batch)
        self._usual.expect(seconds)
        self._seen: Counter[int] = Counter({size_of(rows): _LEARNING for rows in seconds})
        self._log_pace = 0.0
        self._learned_s = -math.inf

    @property
    def known(self) -> bool:
        """Whether it was ever measured, or ran."""
        return self._usual.known

    @property
    def pace(self) -> float:
        """Present batch times as a multiple of the usual ones."""
        return math.exp(self._log_pace)

    def seconds(self, rows: int) -> float | None:
        """Returns the expected seconds of a batch that starts now, or None if nothing is known."""
        return self._usual.seconds(rows) * self.pace if self.known else None

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch, up to `max_rows`, that pays there; see `BatchTimes`."""
        return self._usual.worthwhile_rows(max_rows)

    def has_tried(self, rows: int) -> bool:
        """Returns whether a batch of the size of these rows ran, or was measured."""
        return self._usual.has_tried(rows)

    def observe(self, batch: RunningBatch, now_s: float) -> None:
        """Learns from a batch that ended now."""
        took_s, run_s = now_s - batch.started_s, self._usual.seconds(batch.rows) * batch.pace
        expected_s = batch.wait_s + run_s
        size = size_of(batch.rows)
        if self._seen[size] < _LEARNING:
            self._seen[size] += 1
            share = run_s / expected_s if run_s > 0 else 1.0  # the share of the slot is unknown for a new model
            self._usual.observe(batch.rows, took_s * share / batch.pace, now_s)
            self._learned_s = now_s
        else:
            found = math.log(max(took_s, 1e-6) / max(expected_s, 1e-6)) + math.log(batch.pace)
            self._seen[size] = min(_MOST, self._seen[size] + 1)
            over = max(-math.log(_HICCUP), min(math.log(_HICCUP), found - self._log_pace)) / self._seen[size]
            self._usual.scale(batch.rows, math.exp(over))
            self._learn_pace(found - over, now_s)

    def observe_abandoned(self, batch: RunningBatch, now_s: float) -> None:
        """Learns from a batch that was given up now: it would have taken longer."""
        waited_s, expected_s = now_s - batch.started_s, batch.wait_s + self._usual.seconds(batch.rows) * batch.pace
        if self.known and waited_s > expected_s > 0:
            least = math.log(batch.pace * waited_s / expected_s)
            if least > self._log_pace:
                self._learn_pace(least, now_s)

    def _learn_pace(self, log_pace: float, now_s: float) -> None:
        earlier = (1 - _NEWEST) * 0.5 ** (max(0.0, now_s - self._learned_s) / _HALF_LIFE_S)
        newest = min(log_pace, self._log_pace + math.log(_HICCUP))
        self._log_pace = earlier * self._log_pace + (1 - earlier) * newest
        self._learned_s = now_s


class RunningBatch(Struct, eq=False):
    """A batch on an executor.

    Args:
        key: its model.
        rows: of the batch.
        wait_s: expected wait for a slot, from `started_s` on.
        run_s: expected seconds in the slot, or None if the model was never measured there.
        pace: of the executor at the start; see `Forecast`.
        started_s: when the executor was given it.
        is_probe: whether it is a copy that only measures the executor.
    """

    key: ModelKey
    rows: int
    wait_s: float
    run_s: float | None
    pace: float
    started_s: float
    is_probe: bool = False

    @property
    def expected_s(self) -> float | None:
        """Expected seconds from the start to the answer."""
        return None if self.run_s is None else self.wait_s + self.run_s

    def left_s(self, now_s: float) -> float:
        """Returns the expected seconds left in its slot. An overdue batch is expected to take as much longer again."""
        if self.run_s is None:
            return 0.0
        return abs(self.run_s - max(0.0, now_s - self.started_s - self.wait_s))

    def overdue(self, now_s: float) -> float:
        """Returns the time that passed in multiples of the expected time, at least 1."""
        expected_s = self.expected_s
        return max(1.0, (now_s - self.started_s) / expected_s) if expected_s else 1.0


class Candidate(Struct, Generic[E], frozen=True):
    """An executor, as it is for one batch.

    Args:
        executor: the executor.
        wait_s: until a slot is free there.
        run_s: of the batch in the slot; None if it is unknown.
        under_way: batches that it has now.
        trusted: whether it is not ejected; see `Health`.
    """

    executor: E
    wait_s: float
    run_s: float | None
    under_way: int = 0
    trusted: bool = True

    @property
    def done_s(self) -> float:
        """Seconds until the batch would complete; infinite if that is unknown."""
        return math.inf if self.run_s is None else self.wait_s + self.run_s


def earliest_completion(candidates: Iterable[Candidate[E]]) -> Candidate[E] | None:
    """Returns the candidate with the earliest predicted completion; None if there is none.

    Executors that are not ejected come first. Equals take turns by their batches under way. One that was never measured
    comes last; probes measure it. The prediction counts the batches under way and the batch itself, so that work
    spreads in the proportion of the speeds ("shortest expected delay", Banawan and Zahorjan, INFOCOM 1989; with one
    server each, the rule of HEFT: Topcuoglu et al., IEEE TPDS 2002). Each choice adds to the batches under way, which
    the next choice counts, so no hysteresis is needed.
    """
    return min(candidates, key=lambda each: (not each.trusted, each.done_s, each.under_way), default=None)


def free_s(left_s: Iterable[float], slots: int) -> list[float]:
    """Returns the seconds until each slot is free, the least first; batches start in the order of their arrival.

    Args:
        left_s: seconds that each batch under way will still take in its slot, in the order of their arrival.
        slots: that run side by side, at least 1.
    """
    free = [0.0] * slots
    for each in left_s:
        heapq.heapreplace(free, free[0] + each)
    return free


class Times(Protocol):
    """How long batches of a model take."""

    def seconds(self, rows: int) -> float:
        """Returns the expected seconds of a batch; 0 if nothing is known."""
        ...

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch that is worth it, up to `max_rows`."""
        ...


class Lane(NamedTuple):
    """A slot of an executor that runs a model.

    Args:
        wait_s: seconds until it is free.
        times: of batches there.
    """

    wait_s: float
    times: Times


class BatchForecast(NamedTuple):
    """The completion of batches of one size, on slots side by side of which one may be faster than another.

    Each batch goes where it completes first. So a slow slot takes part only if so much work waits for the fast ones
    that they would not complete earlier, and one that hangs takes no part until its batch should have ended. The number
    of batches that have ended by some time follows without placing them one by one.

    Args:
        seconds: of a batch where work is counted.
        lanes: of each, when it would have run one batch, and the work that it does in a second; the first comes first.
    """

    seconds: float
    lanes: Sequence[tuple[float, float]]

    @property
    def first_s(self) -> float:
        """When a batch completes that is next."""
        return self.lanes[0][0]

    def done(self, work_s: float) -> tuple[float, float]:
        """Returns when a batch completes that comes after so much work, and the work done in a second then."""
        at_s, speed = self.lanes[0]
        for ends_s, more in self.lanes[1:]:
            meanwhile_s = speed * (ends_s - at_s)
            if meanwhile_s >= work_s:
                break
            # By then that lane has done one whole batch; from then on it does its part of every second.
            work_s = max(0.0, work_s - meanwhile_s - self.seconds)
            at_s, speed = ends_s, speed + more
        return at_s + work_s / speed, speed

    def wait_s(self, work_s: float) -> float:
        """Returns how long a batch waits that comes after so much work and runs where work is counted."""
        return max(0.0, self.done(work_s)[0] - self.seconds)


class CompletionForecast:
    """The completion of one model's requests.

    Args:
        lanes: the slots that run it, at least one.
        max_rows: of a batch.

    Attributes:
        lanes: as given.
        times: those of the lane that does most work; it does 1 s of work in 1 s.
    """

    def __init__(self, lanes: Sequence[Lane], max_rows: int) -> None:
        def rows_per_s(lane: Lane) -> float:
            rows = lane.times.worthwhile_rows(max_rows)
            seconds = lane.times.seconds(rows)
            return rows / seconds if seconds else 0.0

        self.lanes = lanes
        self.times = lanes[0].times if len(lanes) == 1 else max(lanes, key=rows_per_s).times

    def of(self, rows: int) -> BatchForecast:
        """Returns the forecast of batches of so many rows."""
        batch_s = self.times.seconds(rows)
        lanes = []
        for wait_s, times in self.lanes:
            run_s = batch_s if times is self.times else times.seconds(rows)
            lanes.append((wait_s + run_s, batch_s / run_s if run_s else 1.0))
        return BatchForecast(batch_s, sorted(lanes))
