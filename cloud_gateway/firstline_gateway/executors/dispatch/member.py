"""One executor of the pool: its models, its running batches, and predictions for a batch there. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, Protocol

from firstline_core.bundle.loading import LoadedModel
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.types import ModelKey
from firstline_gateway.executors.base import Executor, InProcess, PreparesHere
from firstline_gateway.executors.dispatch.forecast import Candidate, Forecast, RunningBatch, free_s
from firstline_gateway.models.repository import ServedModel

# In this process a batch is queued behind a running one only if it is as quick as that: longer ones gain nothing, and
# take part of the answers from a client that sends few requests (`bench.overload`).
_AHEAD_S = 0.03

_FAILURES = 3
# After so many batches the share of failures is compared with that of the others, and may exceed it by so much.
_COMPARED, _MORE_FAILURES = 50, 0.2
_FIRST_S, _LONGEST_S = 0.5, 30.0
_ANSWERS = 2
# After so many answers in a row earlier ejections no longer count.
_FORGIVEN = 100
_PROBE_FIRST_S, _PROBE_LONGEST_S = 1.0, 4.0
# Hedges saved up for one hiccup of one server.
_MOST_HEDGES = 5.0
PROBE_SHARE, PROBE_SAVED_S = 0.02, 2.0
"""The share of an executor's time that probes may take, and the seconds of it that may be saved up."""


class Health:
    """Ejection of an executor after errors of one model, and probes that bring it back. Times are arguments.

    An executor is ejected for a model after three failures in a row, or if a much larger share of its batches fails
    than of the others': for half a second at first, then for twice as long each time. It may still answer for another
    model, which needs less memory. After that time it is probed with copies of batches that another executor answers,
    so that no caller depends on it. Two answers in a row end the ejection. A healthy but slow executor that gets no
    other work is probed in the same way, or no measurement would show that it has become fast again.

    Attributes:
        trusted: whether the executor is not ejected.
    """

    __slots__ = (
        "_answers",
        "_batches",
        "_ejections",
        "_failed_batches",
        "_failures",
        "_probe_due_s",
        "_probe_pause_s",
        "_until_s",
        "trusted",
    )

    def __init__(self) -> None:
        self._failures = self._answers = self._ejections = 0
        self._batches = self._failed_batches = 0.0  # half of the earlier ones, and all since
        self._until_s = self._probe_due_s = -math.inf
        self._probe_pause_s = _PROBE_FIRST_S
        self.trusted = True

    def answered(self) -> None:
        """Counts an answered batch. A refusal because of the request itself does not count."""
        self._failures = 0
        self._answers += 1
        self._count(failed=False)
        if self._answers >= _ANSWERS:
            self.trusted = True
        if self._answers >= _FORGIVEN:
            self._ejections = 0

    @property
    def failure_share(self) -> float | None:
        """The share of the recent batches that failed; None until there are enough of them."""
        return self._failed_batches / self._batches if self._batches >= _COMPARED else None

    def failed(self, now_s: float, peers: Sequence[float] = (), *, may_eject: bool = True) -> bool:
        """Counts a failed batch; returns whether this ejects the executor.

        Args:
            now_s: the present.
            peers: the failure shares of the other executors.
            may_eject: whether it may be ejected, however often it fails.
        """
        self._answers = 0
        self._failures += 1
        self._count(failed=True)
        share = self.failure_share
        fails_more = share is not None and bool(peers) and share > fmean(peers) + _MORE_FAILURES
        if self.trusted and not (may_eject and (self._failures >= _FAILURES or fails_more)):
            return False
        if self.trusted or now_s >= self._until_s:  # batches that were running together count as one failure
            self._until_s = now_s + min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._ejections, 16))
            self._ejections += 1
        ejected, self.trusted, self._failures = self.trusted, False, 0
        self._batches = self._failed_batches = 0.0
        return ejected

    def _count(self, *, failed: bool) -> None:
        if self._batches >= 2 * _COMPARED:
            self._batches /= 2
            self._failed_batches /= 2
        self._batches += 1
        self._failed_batches += failed

    def left_s(self, now_s: float) -> float:
        """Returns the seconds until an ejected executor is probed; 0 if it is not ejected."""
        return 0.0 if self.trusted else max(0.0, self._until_s - now_s)

    def used(self, now_s: float) -> None:
        """Postpones the next probe, because the executor got work of its own."""
        self._probe_pause_s = _PROBE_FIRST_S
        self._probe_due_s = now_s + _PROBE_FIRST_S

    def probed(self, now_s: float) -> None:
        """Postpones the next probe, because one was sent."""
        self._probe_due_s = now_s + self._probe_pause_s
        self._probe_pause_s = min(_PROBE_LONGEST_S, 2 * self._probe_pause_s)

    def may_be_probed(self, now_s: float) -> bool:
        """Returns whether a probe is due."""
        return now_s >= self._probe_due_s and self.left_s(now_s) <= 0


class ProbeBudget:
    """The time that probes of all models may take on one executor, by what earlier probes took."""

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


class HedgeBudget:
    """The share of the batches of some servers that may also run on a second one because they are late.

    Args:
        share: of all batches.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = TokenBucket(_MOST_HEDGES if share else 0.0)

    def earn(self) -> None:
        """Counts a batch that starts for the first time."""
        self._left.earn(self._share)

    def is_spent(self, now_s: float) -> bool:
        """Returns whether no hedge is left."""
        return self._left.wait_s(now_s) > 0

    def take(self, now_s: float) -> None:
        """Takes one hedge, if one is left."""
        self._left.take(now_s)


@dataclass(slots=True)
class PlacedModel:
    """A model on an executor."""

    served: ServedModel
    forecast: Forecast
    health: Health


class Member:
    """One executor. Each server of an executor of several servers is a member of its own.

    Args:
        name: of the executor in the settings.
        executor: runs the batches.
        profiled: returns the profiled seconds of a model's batches there, by their rows; reads files.
        sessions: batches that really run at the same moment there; 0 if that is unknown.
        takes: whether a model, by name, may run there at all.
        load: loads a model into this process for it; None if its models are remote, or are loaded for it.
        is_shared: whether batches in flight slow each other down there by an unknown amount. It is then chosen as if
            they ran one after the other, so that equal executors get equal parts.
        url: of its server, if the executor has servers of its own.
        hedges: how many late batches of its servers may also run on another of them; None counts them as other repeats.

    Attributes:
        models: that it runs.
        outcomes: batches by outcome: "answered", "refused" (the requests were at fault, or perhaps were), "failed", or
            "cut_off": given up, because another executor was faster or a probe took too long.
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
        self.running: list[RunningBatch] = []
        self.outcomes: Counter[str] = Counter()
        self.in_process = executor if isinstance(executor, InProcess) else None
        self.prepares_here = executor if isinstance(executor, PreparesHere) else None
        self._probe_budget = ProbeBudget()
        self._sessions = sessions
        self._is_shared = is_shared

    def place(self, served: ServedModel, seconds: Mapping[int, float]) -> None:
        """Runs a model from now on, with the profiled seconds of its batches, if there are any."""
        measured = self.in_process.loop_times(served.key).measured if self.in_process is not None else {}
        self.models[served.key] = PlacedModel(served, Forecast(seconds or measured, served.full.batch), Health())

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
        """Batches that really run at the same moment."""
        return self._sessions or self.executor.slots

    @property
    def slots(self) -> int:
        """Batches that it is worth giving at the same moment.

        A remote executor with an unknown number of sessions is given fewer as it slows down: the batches that wait
        there cannot be taken back.
        """
        if not self.usable:
            return 0
        if self._sessions:
            return min(self.executor.slots, self._sessions)
        if self.in_process is not None:
            return self.executor.slots
        pace = min((placed.forecast.pace for placed in self.models.values()), default=1.0)
        return max(1, round(self.executor.slots / max(1.0, pace)))

    @property
    def _usable_slots(self) -> int:
        return max(1, min(self.slots, self.side_by_side))

    def room(self, slots: int, ahead_s: float | None = None) -> bool:
        """Returns whether it may be given one more batch.

        Args:
            slots: see `slots`; the caller asks for them once.
            ahead_s: seconds of a batch that may be queued behind the running ones, so that no slot idles until the
                event loop has its turn; None for a batch that needs a free slot.
        """
        most = slots
        if ahead_s is not None and self.in_process is None:
            most = min(most + self._sessions, max(most, self.executor.slots))
        elif ahead_s is not None and ahead_s <= _AHEAD_S:
            most *= 2
        return len(self.running) < most

    def room_for_a_trial(self, key: ModelKey) -> bool:
        """Returns whether it may be given a batch of a model that it is ejected for: one at a time."""
        return not self.runs(key) and len(self.running) < self.side_by_side

    def runs(self, key: ModelKey) -> bool:
        """Returns whether a batch of a model runs there."""
        return any(each.key == key for each in self.running)

    # Forecasts.

    def seconds(self, key: ModelKey, rows: int) -> float | None:
        """Returns the expected seconds of a batch in a slot, or None if nothing is known."""
        return self.models[key].forecast.seconds(rows)

    def loop_times(self, key: ModelKey) -> LoopTimes | None:
        """Returns the times of a model on the event loop; None if they are unknown or its batches have to be placed."""
        placed = self.models.get(key)
        if self.in_process is None or placed is None or not placed.health.trusted:
            return None
        return self.in_process.loop_times(key)

    def worthwhile_rows(self, key: ModelKey, max_rows: int) -> int:
        """Returns the largest batch that gains by its size there."""
        return self.models[key].forecast.worthwhile_rows(max_rows)

    def rows_per_s(self, key: ModelKey, rows: int, now_s: float) -> float:
        """Returns its throughput of a model, in batches of at most so many rows; 0 if nothing is known."""
        size = self.worthwhile_rows(key, max(1, rows))
        seconds = self.seconds(key, size)
        return self.side_by_side * size / seconds / self.overdue(now_s) if seconds else 0.0

    def overdue(self, now_s: float) -> float:
        """Returns by which factor the slowest running batch exceeds its expected time, at least 1."""
        return max((each.overdue(now_s) for each in self.running), default=1.0)

    def overdue_everywhere(self, now_s: float) -> float:
        """Returns the same of the least overdue slot: one batch that hangs says nothing about the other slots."""
        slots = self._usable_slots
        if len(self.running) < slots:
            return 1.0
        return min(each.overdue(now_s) for each in self.running[:slots])

    def free_for_s(self, key: ModelKey, now_s: float) -> list[float]:
        """Returns the seconds until each of its slots is free for a batch of a model; see `room_for_a_trial`."""
        if self.models[key].health.trusted:
            return free_s([each.left_s(now_s) for each in self.running], self._usable_slots)
        return [max([self._wait_s(now_s), *(each.left_s(now_s) for each in self.running if each.key == key)])]

    def _wait_s(self, now_s: float, reserved_s: Sequence[float] = ()) -> float:
        """Returns the seconds until a slot is free, after batches that take `reserved_s`."""
        return free_s([*(each.left_s(now_s) for each in self.running), *reserved_s], self.side_by_side)[0]

    def candidate(self, key: ModelKey, rows: int, now_s: float, reserved_s: Sequence[float] = ()) -> Candidate[Member]:
        """Returns what the member offers to a batch, after batches that take `reserved_s`."""
        placed = self.models[key]
        run_s = placed.forecast.seconds(rows)
        if run_s is not None:
            run_s *= self.overdue(now_s) * (1 + len(self.running) if self._is_shared else 1)
        return Candidate(
            executor=self,
            wait_s=self._wait_s(now_s, reserved_s),
            run_s=run_s,
            under_way=len(self.running),
            trusted=placed.health.trusted,
        )

    # Batches.

    def begin(
        self, key: ModelKey, rows: int, now_s: float, *, is_probe: bool = False, on_loop: bool = False
    ) -> RunningBatch:
        """Records that a batch starts."""
        placed = self.models[key]
        running = RunningBatch(
            key,
            rows,
            wait_s=0.0 if on_loop else self._wait_s(now_s),
            run_s=placed.forecast.seconds(rows),
            pace=placed.forecast.pace,
            started_s=now_s,
            is_probe=is_probe,
        )
        if is_probe:
            placed.health.probed(now_s)
        else:
            placed.health.used(now_s)
        self.running.append(running)
        return running

    def may_probe(self, key: ModelKey, now_s: float) -> bool:
        """Returns whether a probe is due: the member was idle for a while, has room and may be tried."""
        return (
            self.models[key].health.may_be_probed(now_s)
            and len(self.running) < self.side_by_side
            and not self.runs(key)
            and not any(each.is_probe for each in self.running)
            and self._probe_budget.may(now_s)
        )

    def end(self, running: RunningBatch, outcome: Literal["answered", "refused", "failed"], now_s: float) -> None:
        """Records the end of a batch; see `outcomes`. `count_failure` decides on the health after a failure."""
        self.free(running, now_s)
        self.outcomes[outcome] += 1
        placed = self.models.get(running.key)
        if outcome == "answered" and placed is not None:
            placed.health.answered()
            placed.forecast.observe(running, now_s)

    def answered_on_loop(self, key: ModelKey, now_s: float) -> None:
        """Records a batch that started and ended in one turn of the event loop: it says nothing about the slots."""
        placed = self.models[key]
        self.outcomes["answered"] += 1
        placed.health.answered()
        placed.health.used(now_s)

    def failure_share(self, key: ModelKey) -> float | None:
        """Returns the share of its recent batches of a model that failed; None if there were too few."""
        return self.models[key].health.failure_share

    def count_failure(self, key: ModelKey, now_s: float, peers: Sequence[float], *, may_eject: bool) -> bool:
        """Records a failure that is the member's own; returns whether this ejects it. See `Health.failed`."""
        return key in self.models and self.models[key].health.failed(now_s, peers, may_eject=may_eject)

    def cut_off(self, running: RunningBatch, now_s: float, *, runs_on: bool = False) -> None:
        """Records a batch that was given up.

        Args:
            running: the batch.
            now_s: the present.
            runs_on: a thread cannot be stopped: the batch keeps its slot until `free`.
        """
        if not runs_on:
            self.free(running, now_s)
        self.outcomes["cut_off"] += 1
        if (placed := self.models.get(running.key)) is not None:
            placed.forecast.observe_abandoned(running, now_s)

    def free(self, running: RunningBatch, now_s: float) -> None:
        """Gives back the slot of a batch."""
        self.running.remove(running)
        if running.is_probe:
            self._probe_budget.took(now_s - running.started_s, now_s)


class OpensMember(Protocol):
    """Opens the members of one executor: a `Member` of which the name and the profiled times are given already."""

    def __call__(
        self,
        executor: Executor,
        *,
        sessions: int,
        is_shared: bool = False,
        url: str = "",
        hedges: HedgeBudget | None = None,
    ) -> Member:
        """See `Member`."""
        ...
