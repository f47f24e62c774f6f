"""A member of the pool: its models with the times of their batches, its running batches, and predictions. No I/O.

A member is an executor of the settings, or one server of an executor that has several.

The usual seconds of a model's batches come from a profile, or from the measurement when the model was loaded; otherwise
the first batches tell. The pace is the ratio of observed to expected time: 1 as usual, 3 if everything takes three
times as long. It is one number for all sizes, so that one batch of any size shows a machine that has become slow.

Each error of a prediction is divided. One part changes the usual seconds of that batch size, because the profile may
come from a machine that gains less by batching: the n-th batch of a size changes them by 1 / n of the error, and the
profile counts as the first few batches. So a few more correct a wrong profile. The rest of the error changes the pace,
so that a short disturbance of the whole machine changes the usual seconds little.

    Forecast                    the times of one model's batches on the member, learned from those that ended
    BatchAttempt                some requests of a batch on the member, from `Member.begin` until it frees its slot
    Health                      the member's failures with one model: ejection, and when the next probe is due
    ProbeBudget, HedgeBudget    the limits of probes and of repeats because of lateness
    Member                      joins all of the above, and answers "when would this batch complete?"
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.runtime.batch_times import BatchTimes, LoopTimes, size_of
from firstline_core.types import ModelKey
from firstline_gateway.executors.base import Executor, InProcess, PreparesHere
from firstline_gateway.models.repository import ServedModel

# Weight of the newest batch in the pace if the one before has just ended; seconds in which the earlier weight halves.
_NEWEST, _HALF_LIFE_S = 0.2, 2.0
# Largest factor by which one batch counts as slower than expected: a short disturbance moves no traffic for long.
_MOST_SLOWER = 4.0
# Batches of one size that establish its usual time, and outweigh earlier knowledge; and the number of batches of which
# the newest one counts as one part at least.
_LEARNING, _MOST = 8, 64

# Failures in a row that eject a member.
_FAILURES = 3
# Batches after which the share of failures is compared with that of the other members, and the largest difference.
_COMPARED, _MORE_FAILURES = 50, 0.2
# Seconds of the first ejection, and of the longest.
_FIRST_S, _LONGEST_S = 0.5, 30.0
# Answers in a row that end an ejection.
_ANSWERS = 2
# Answers in a row after which earlier ejections no longer count.
_FORGIVEN = 100
_PROBE_EVERY_S = 2.0
# Hedges that may be saved up, for a short disturbance of one server.
_MOST_HEDGES = 5.0
PROBE_SHARE, PROBE_SAVED_S = 0.02, 2.0
"""The share of a member's time that probes may take, and the seconds of it that may be saved up."""

E = TypeVar("E", bound=Hashable)

OpensMember = Callable[..., "Member"]
"""Opens the members of one executor: a `Member` of which the name and the profiled times are given already."""


class Forecast:
    """The times of one model's batches on one member.

    Example: a profile says 0.1 s for 1 row and 0.4 s for 8 rows. It counts as 8 batches of each size. A batch of 1 row
    takes 0.1 s as expected; the next one, which starts at once, takes 0.2 s. It is the tenth of its size, so a tenth of
    its error belongs to the size: 1 row now usually takes 0.107 s. The rest belongs to the pace, in which the newest
    batch has a weight of at least 0.2: it becomes 1.17. The next batches are expected to take 0.126 s (1 row) and
    0.469 s (8 rows). If the slow batch ends 10 s after the one before, that one counts for little, and the pace becomes
    1.84.

    Args:
        seconds: measured seconds of batches, by rows; empty if none was measured.
        batch: see `BatchTimes`.

    Attributes:
        pace: present batch times as a multiple of the usual ones.
    """

    def __init__(self, seconds: Mapping[int, float], batch: int | None = None) -> None:
        self._usual = BatchTimes(batch)
        self._usual.expect(seconds)
        self._seen: Counter[int] = Counter({size_of(rows): _LEARNING for rows in seconds})
        self.pace = 1.0
        self._log_pace = 0.0
        self._learned_s = -math.inf

    def seconds(self, rows: int) -> float | None:
        """Returns the expected seconds of a batch that starts now, or None if nothing is known."""
        return self._usual.seconds(rows) * self.pace if self._usual.known else None

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch, up to `max_rows`, that pays there; see `BatchTimes`."""
        return self._usual.worthwhile_rows(max_rows)

    def has_tried(self, rows: int) -> bool:
        """Returns whether a batch of the size of these rows ran, or was measured."""
        return self._usual.has_tried(rows)

    def observe(self, batch: BatchAttempt, now_s: float) -> None:
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
            # In logarithms: the pace by this batch alone, and the part of the difference that belongs to its size.
            found = math.log(max(took_s, 1e-6) / max(expected_s, 1e-6)) + math.log(batch.pace)
            self._seen[size] = min(_MOST, self._seen[size] + 1)
            over = max(-math.log(_MOST_SLOWER), min(math.log(_MOST_SLOWER), found - self._log_pace)) / self._seen[size]
            self._usual.scale(batch.rows, math.exp(over))
            self._learn_pace(found - over, now_s)

    def observe_abandoned(self, batch: BatchAttempt, now_s: float) -> None:
        """Learns from a batch that was given up now: it would have taken longer."""
        waited_s, expected_s = now_s - batch.started_s, batch.wait_s + self._usual.seconds(batch.rows) * batch.pace
        if self._usual.known and waited_s > expected_s > 0:
            least = math.log(batch.pace * waited_s / expected_s)
            if least > self._log_pace:
                self._learn_pace(least, now_s)

    def _learn_pace(self, log_pace: float, now_s: float) -> None:
        """Moves the pace towards that of the newest batch; the longer ago the last one ended, the further."""
        earlier = (1 - _NEWEST) * 0.5 ** (max(0.0, now_s - self._learned_s) / _HALF_LIFE_S)
        newest = min(log_pace, self._log_pace + math.log(_MOST_SLOWER))
        self._log_pace = earlier * self._log_pace + (1 - earlier) * newest
        self.pace = math.exp(self._log_pace)
        self._learned_s = now_s


class BatchAttempt(Struct, eq=False):
    """Some requests of a batch on one member.

    Args:
        member: it runs them.
        key: the model.
        rows: of the requests.
        wait_s: expected wait for a slot, from `started_s` on.
        run_s: expected seconds in the slot, or None if the model was never measured there.
        pace: of the member at the start; see `Forecast`.
        started_s: when the member was given it.
        positions: of the requests in the batch.
        is_probe: whether it is a copy that only measures the member.
    """

    member: Member
    key: ModelKey
    rows: int
    wait_s: float
    run_s: float | None
    pace: float
    started_s: float
    positions: Sequence[int] = ()
    is_probe: bool = False

    def left_s(self, now_s: float) -> float:
        """Returns the expected seconds left in its slot; of an overdue batch, the seconds by which it is overdue."""
        if self.run_s is None:
            return 0.0
        return abs(self.run_s - max(0.0, now_s - self.started_s - self.wait_s))


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


class Health:
    """Ejection of a member after errors of one model, and probes that bring it back. Times are arguments.

    A member is ejected for a model after three failures in a row, or if the share of its batches that fail is much
    larger than that of the other members. The first ejection lasts half a second, each further one twice as long. The
    member may still answer for another model, which needs less memory. After that time it is probed with copies of
    batches that another member answers, so that no caller depends on it. Two answers in a row end the ejection. A
    healthy but slow member that gets no other work is probed in the same way, or no measurement would show that it
    has become fast again.

    Attributes:
        trusted: whether the member is not ejected.
    """

    def __init__(self) -> None:
        self._failures = self._answers = self._ejections = 0
        self._recent: deque[bool] = deque(maxlen=2 * _COMPARED)  # whether batches failed
        self._until_s = self._probe_due_s = -math.inf
        self.trusted = True

    def answered(self) -> None:
        """Counts an answered batch. A refusal because of the request itself does not count."""
        self._failures = 0
        self._answers += 1
        self._recent.append(False)
        if self._answers >= _ANSWERS:
            self.trusted = True
        if self._answers >= _FORGIVEN:
            self._ejections = 0

    @property
    def failure_share(self) -> float | None:
        """The share of the recent batches that failed; None until there are enough of them."""
        return fmean(self._recent) if len(self._recent) >= _COMPARED else None

    def failed(self, now_s: float, peers: Sequence[float] = (), *, may_eject: bool = True) -> bool:
        """Counts a failed batch; returns whether this ejects the member.

        Args:
            now_s: the present.
            peers: the failure shares of the other members.
            may_eject: whether it may be ejected, however often it fails.
        """
        self._answers = 0
        self._failures += 1
        self._recent.append(True)
        share = self.failure_share
        fails_more = share is not None and bool(peers) and share > fmean(peers) + _MORE_FAILURES
        if self.trusted and not (may_eject and (self._failures >= _FAILURES or fails_more)):
            return False
        if self.trusted or now_s >= self._until_s:  # batches that were running together count as one failure
            self._until_s = now_s + min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._ejections, 16))
            self._ejections += 1
        ejected, self.trusted, self._failures = self.trusted, False, 0
        self._recent.clear()
        return ejected

    def left_s(self, now_s: float) -> float:
        """Returns the seconds until an ejected member is probed; 0 if it is not ejected."""
        return 0.0 if self.trusted else max(0.0, self._until_s - now_s)

    def used(self, now_s: float) -> None:
        """Postpones the next probe, because the member got a batch or a probe."""
        self._probe_due_s = now_s + _PROBE_EVERY_S

    def may_be_probed(self, now_s: float) -> bool:
        """Returns whether a probe is due."""
        return now_s >= self._probe_due_s and self.left_s(now_s) <= 0


class ProbeBudget:
    """The time that probes of all models may take on one member, by what earlier probes took."""

    def __init__(self) -> None:
        self._left_s = PROBE_SAVED_S
        self._at_s: float | None = None

    def may(self, now_s: float) -> bool:
        """Returns whether one more may be sent."""
        if self._at_s is not None:
            self._left_s = min(PROBE_SAVED_S, self._left_s + PROBE_SHARE * max(0.0, now_s - self._at_s))
        self._at_s = now_s
        return self._left_s > 0

    def took(self, seconds: float, now_s: float) -> None:
        """Takes the seconds of a probe that ended, or was given up."""
        self.may(now_s)
        self._left_s -= seconds


class HedgeBudget(TokenBucket):
    """The share of the batches of some servers that may also run on a second one because they are late.

    Args:
        share: of all batches.
    """

    __slots__ = ("share",)

    def __init__(self, share: float) -> None:
        super().__init__(_MOST_HEDGES if share else 0.0)
        self.share = share


@dataclass(slots=True)
class PlacedModel:
    """A model on a member.

    Args:
        served: the model.
        forecast: of its batches there.
        loop_times: of its batches on the event loop, if the member is in this process.
        health: of the member for this model.
    """

    served: ServedModel
    forecast: Forecast
    loop_times: LoopTimes | None
    health: Health


class Candidate(Struct, Generic[E], frozen=True):
    """A member, as it is for one batch.

    Args:
        member: the member.
        wait_s: until a slot is free there.
        run_s: of the batch in the slot; None if it is unknown.
        under_way: batches that it has now.
        trusted: whether it is not ejected; see `Health`.
    """

    member: E
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

    Members that are not ejected come first. Equals take turns by their batches under way. One that was never measured
    comes last; probes measure it. The prediction counts the batches under way and the batch itself, so that work
    spreads in the proportion of the speeds ("shortest expected delay", Banawan and Zahorjan, INFOCOM 1989; with one
    server each, the rule of HEFT: Topcuoglu et al., IEEE TPDS 2002). Each choice adds to the batches under way, which
    the next choice counts, so no hysteresis is needed.
    """
    return min(candidates, key=lambda each: (not each.trusted, each.done_s, each.under_way), default=None)


class Member:
    """An executor of the settings, or one server of an executor that has several.

    Args:
        name: of the executor in the settings.
        executor: runs the batches.
        profiled: returns the profiled seconds of a model's batches there, by their rows.
        sessions: batches that really run at the same moment there; 0 if that is unknown.
        takes: whether a model, by name, may run there at all.
        load: loads a model into this process for it; None if its models are remote, or are loaded for it.
        is_shared: whether batches in flight slow each other down there by an unknown amount. It is then chosen as if
            they ran one after the other, so that equal members get equal parts.
        url: of its server, if the executor has servers of its own.
        hedges: how many late batches of its servers may also run on another of them; None counts them as other repeats.

    Attributes:
        models: that it runs.
        outcomes: batches by outcome: "answered", "refused" (the requests were at fault, or perhaps were), "failed", or
            "cut_off": given up, because another member was faster or a probe took too long.
        running: batches in the order of their starts.
        in_process: the executor, if its models are in this process.
        prepares_here: the executor, if its inputs are preprocessed in this process.
    """

    def __init__(
        self,
        name: str,
        executor: Executor,
        *,
        sessions: int,
        profiled: Callable[[ServedModel], Mapping[int, float]] = lambda served: {},
        takes: Callable[[str], bool] = lambda name: True,
        load: Callable[[ServedModel], LoadedModel] | None = None,
        is_shared: bool = False,
        url: str = "",
        hedges: HedgeBudget | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.hedges = hedges
        self.executor = executor
        self.takes = takes
        self.load = load
        self.profiled = profiled
        self.models: dict[ModelKey, PlacedModel] = {}
        self.running: list[BatchAttempt] = []
        self.outcomes: Counter[str] = Counter()
        self.in_process = executor if isinstance(executor, InProcess) else None
        self.prepares_here = executor if isinstance(executor, PreparesHere) else None
        self._probe_budget = ProbeBudget()
        self._sessions = sessions
        self._is_shared = is_shared

    def place(self, served: ServedModel, seconds: Mapping[int, float]) -> None:
        """Runs a model from now on, with the profiled seconds of its batches, if there are any."""
        loop_times = self.in_process.loop_times(served.key) if self.in_process is not None else None
        measured = loop_times.measured if loop_times is not None else {}
        forecast = Forecast(seconds or measured, served.full.batch)
        self.models[served.key] = PlacedModel(served, forecast, loop_times, Health())

    def displace(self, key: ModelKey) -> None:
        """Runs a model no longer."""
        self.models.pop(key, None)

    # State.

    def problem_with(self, key: ModelKey) -> str:
        """Returns why it cannot run a model at the moment, as a sentence, or ""."""
        return self.executor.problem_with(key) if key in self.models else f"It is not on executor '{self.name}'."

    def is_ejected(self, key: ModelKey) -> bool:
        """Returns whether it has a model and gets none of its batches after failures."""
        return key in self.models and not self.models[key].health.trusted

    def takes_now(self, key: ModelKey) -> bool:
        """Returns whether it can run a model and is not ejected for it."""
        return not self.problem_with(key) and self.models[key].health.trusted

    def oldest_s(self, key: ModelKey, now_s: float) -> float:
        """Returns how long the oldest batch of a model has run; 0 if there is none."""
        return max((now_s - each.started_s for each in self.running if each.key == key), default=0.0)

    @property
    def usable(self) -> bool:
        """Whether it is given batches at the moment."""
        return any(map(self.takes_now, self.models))

    @property
    def side_by_side(self) -> int:
        """Batches that run at the same moment."""
        return min(self._sessions, self.executor.slots) if self._sessions else self.executor.slots

    @property
    def slots(self) -> int:
        """Batches that it may be given at the same moment."""
        return self.side_by_side if self.usable else 0

    def has_room(self, *, is_full: bool = False) -> bool:
        """Returns whether it may be given one more batch.

        Args:
            is_full: whether the batch gains nothing by waiting. A remote member of known sessions is then given one
                more for each, so that no session idles while answers travel.
        """
        most = self.side_by_side
        if is_full and self.in_process is None:
            most = min(most + self._sessions, self.executor.slots)
        return len(self.running) < most

    # Predictions.

    def seconds(self, key: ModelKey, rows: int) -> float | None:
        """Returns the expected seconds of a batch in a slot, or None if nothing is known."""
        return self.models[key].forecast.seconds(rows)

    def worthwhile_rows(self, key: ModelKey, max_rows: int) -> int:
        """Returns the largest batch that gains by its size there."""
        return self.models[key].forecast.worthwhile_rows(max_rows)

    def rows_per_s(self, key: ModelKey, rows: int) -> float:
        """Returns its throughput of a model, in batches of at most `rows` rows; 0 if nothing is known."""
        size = self.worthwhile_rows(key, max(1, rows))
        seconds = self.seconds(key, size)
        return self.side_by_side * size / seconds if seconds else 0.0

    def until_free_s(self, now_s: float) -> list[float]:
        """Returns the seconds until each of its slots is free, the least first."""
        return free_s([each.left_s(now_s) for each in self.running], self.side_by_side)

    def candidate(self, key: ModelKey, rows: int, now_s: float, reserved_s: float = 0.0) -> Candidate[Member]:
        """Returns what the member offers to a batch, after batches that take `reserved_s` of each slot."""
        placed = self.models[key]
        run_s = placed.forecast.seconds(rows)
        if run_s is not None and self._is_shared:
            run_s *= 1 + len(self.running)
        return Candidate(
            member=self,
            wait_s=self.until_free_s(now_s)[0] + reserved_s,
            run_s=run_s,
            under_way=len(self.running),
            trusted=placed.health.trusted,
        )

    # Batches.

    def begin(
        self, key: ModelKey, rows: int, now_s: float, positions: Sequence[int] = (), *, is_probe: bool = False
    ) -> BatchAttempt:
        """Records that a batch starts."""
        placed = self.models[key]
        run_s, pace = placed.forecast.seconds(rows), placed.forecast.pace
        attempt = BatchAttempt(self, key, rows, self.until_free_s(now_s)[0], run_s, pace, now_s, positions, is_probe)
        placed.health.used(now_s)
        self.running.append(attempt)
        return attempt

    def may_probe(self, key: ModelKey, now_s: float) -> bool:
        """Returns whether a probe is due: the member was idle for a while, has room and may be tried."""
        return (
            self.models[key].health.may_be_probed(now_s)
            and self.has_room()
            and not any(each.is_probe or each.key == key for each in self.running)
            and self._probe_budget.may(now_s)
        )

    def end(self, attempt: BatchAttempt, outcome: Literal["answered", "refused"], now_s: float) -> None:
        """Records an attempt that was answered or refused; `Dispatcher.end_failed` records one that failed."""
        self.free_slot(attempt, now_s)
        self.outcomes[outcome] += 1
        placed = self.models.get(attempt.key)
        if outcome == "answered" and placed is not None:
            placed.health.answered()
            placed.forecast.observe(attempt, now_s)

    def answered_on_loop(self, key: ModelKey, now_s: float) -> None:
        """Records a batch that started and ended in one turn of the event loop: it says nothing about the slots."""
        health = self.models[key].health
        self.outcomes["answered"] += 1
        health.answered()
        health.used(now_s)

    def cut_off(self, attempt: BatchAttempt, now_s: float, *, runs_on: bool = False) -> None:
        """Records a batch that was given up.

        Args:
            attempt: the batch.
            now_s: the present.
            runs_on: a thread cannot be stopped: the batch keeps its slot until `free_slot`.
        """
        if not runs_on:
            self.free_slot(attempt, now_s)
        self.outcomes["cut_off"] += 1
        if (placed := self.models.get(attempt.key)) is not None:
            placed.forecast.observe_abandoned(attempt, now_s)

    def free_slot(self, attempt: BatchAttempt, now_s: float) -> None:
        """Gives back the slot of a batch."""
        self.running.remove(attempt)
        if attempt.is_probe:
            self._probe_budget.took(now_s - attempt.started_s, now_s)
