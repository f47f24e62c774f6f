"""One batch on several executors: it is retried elsewhere if one fails, and runs on a second one if it is late.

A batch may run twice, because inference has no effect: it is counted, audited and recorded once, before or after. The
number of repeats is bounded, or they would add to the load in which everything fails.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from firstline_core.clock import Clock, Timer
from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    EngineUnavailableError,
    FirstlineError,
    LinkError,
    QueueFullError,
    RateLimitedError,
    RuntimeFailure,
    SheddingError,
)
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Arrays, ModelKey, row_count
from firstline_gateway.executors.base import Outcome, SplitsBatches
from firstline_gateway.executors.dispatch.forecast import RunningBatch, earliest_completion
from firstline_gateway.executors.dispatch.member import Member

# One repeat is allowed for so many batches, and so many repeats are saved up for the death of an executor.
_BATCHES_PER_REPEAT, _MOST_REPEATS = 10, 64
# A batch runs on at most so many executors, and on so many servers of each.
_MOST_EXECUTORS, _MOST_SERVERS = 3, 3
# A batch is late once it has taken so many times what was expected, and at least so much longer.
_LATE, _LATE_S = 3.0, 0.02
# Expected time of a batch that was never measured on an executor: so many times the longest that is known elsewhere, or
# so many seconds. It only has to be longer than a third of what a healthy executor takes.
_UNKNOWN_TIMES, _UNKNOWN_S = 4.0, 0.5

FutureOutcomes = asyncio.Future[list[Outcome]]

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """One batch, as `Executor.run` takes it."""

    key: ModelKey
    inputs: Sequence[Arrays]
    deadlines_s: Sequence[float | None]

    def rows(self, positions: Sequence[int] | None = None) -> int:
        """Returns the rows of some of its requests, or of all, at least 1."""
        found = self.inputs if positions is None else [self.inputs[at] for at in positions]
        return max(1, sum([row_count(each) for each in found]))


@dataclass(slots=True, eq=False)
class Attempt:
    """Some requests of a batch on one executor.

    Args:
        member: the executor.
        running: the batch there.
        positions: of the requests in the batch.
        thread: the batch in a thread, if it is in one; once begun it cannot be stopped.
    """

    member: Member
    running: RunningBatch
    positions: Sequence[int]
    thread: Future[list[Outcome]] | None = None


class Attempts:
    """Starts attempts of batches, learns from their ends, and bounds the repeats. Belongs to one event loop.

    Args:
        members: the executors.
        clock: for all durations.

    Attributes:
        repeated: batches that ran once more, by the reason: "retry" (one failed), "hedge" (it took too long) or "probe"
            between the servers of an executor; "executor_retry", "executor_late" or "executor_probe" between executors.
    """

    def __init__(self, members: Sequence[Member], clock: Clock) -> None:
        self.members = members
        self.clock = clock
        self.repeated: Counter[str] = Counter()
        self._listeners: list[Callable[[], None]] = []
        self._batches = _BATCHES_PER_REPEAT * _MOST_REPEATS  # that no repeat was taken for yet
        self._is_closing = False

    def close(self) -> None:
        """Starts no more repeats, because the executors close."""
        self._is_closing = True

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever a batch ends and an executor may be free."""
        self._listeners.append(listener)

    def count_new_batch(self, member: Member) -> None:
        """Counts a batch that starts for the first time; each such batch allows a share of a repeat."""
        self._batches = min(_BATCHES_PER_REPEAT * _MOST_REPEATS, self._batches + 1)
        if member.hedges is not None:
            member.hedges.earn()

    def count_repeat(self, reason: Literal["retry", "late", "probe"], first: Member, second: Member) -> None:
        """Counts a batch that runs on a second member as well; see `repeated`."""
        if first.name != second.name:
            self.repeated[f"executor_{reason}"] += 1
        else:
            self.repeated["hedge" if reason == "late" else reason] += 1

    def choose_for_repeat(
        self,
        work: Work,
        positions: Sequence[int],
        tried: Sequence[Member],
        *,
        within_s: float = math.inf,
        is_cheap: bool = False,
    ) -> Member | None:
        """Returns an executor for a repeat that is expected to answer within the time, or None; takes one repeat.

        Args:
            work: the batch.
            positions: of the requests to repeat.
            tried: executors that had the batch.
            within_s: finite for a batch that is late.
            is_cheap: whether all earlier ones refused it at once, so that the repeat adds no load.
        """
        if self._is_closing or len(tried) == len(self.members):
            return None
        key, now_s, rows = work.key, self.clock.monotonic_s(), work.rows(positions)
        last = tried[-1]
        hedges = last.hedges if within_s < math.inf else None
        left = [each for each in self._untried(tried) if not each.problem_with(key)]
        if hedges is not None and hedges.is_spent(now_s):
            left = [each for each in left if each.name != last.name]
        found = earliest_completion(member.candidate(key, rows, now_s) for member in left)
        if found is None:
            return None
        done_s = found.done_s if found.run_s is not None else found.wait_s + self.presumed_s(key, rows)
        if done_s > within_s:
            return None
        if hedges is not None and found.executor.name == last.name:
            hedges.take(now_s)
            return found.executor
        if not is_cheap:
            if self._batches < _BATCHES_PER_REPEAT:
                return None
            self._batches -= _BATCHES_PER_REPEAT
        return found.executor

    def _untried(self, tried: Sequence[Member]) -> list[Member]:
        """Returns the members that a batch may still run on, within the limits of executors and servers of each."""
        servers = Counter(member.name for member in tried)
        may_add = len(servers) < _MOST_EXECUTORS
        return [
            each
            for each in self.members
            if each not in tried and servers[each.name] < _MOST_SERVERS and (may_add or servers[each.name])
        ]

    def presumed_s(self, key: ModelKey, rows: int) -> float:
        """Returns the time a batch is presumed to take where it was never measured, so that a hang is noticed."""
        expected_s = (member.seconds(key, rows) for member in self.members if key in member.models)
        return max((_UNKNOWN_TIMES * each for each in expected_s if each is not None), default=_UNKNOWN_S)

    def begin(
        self, member: Member, work: Work, positions: Sequence[int], *, is_probe: bool = False, was_split: bool = False
    ) -> tuple[Attempt, FutureOutcomes]:
        """Starts some requests of a batch on an executor; `settle` or `note` ends the attempt.

        Args:
            member: the executor.
            work: the batch.
            positions: of the requests in the batch.
            is_probe: whether another executor answers the caller.
            was_split: whether another executor repeated them one by one, so that this one should not.
        """
        running = member.begin(work.key, work.rows(positions), self.clock.monotonic_s(), is_probe=is_probe)
        attempt = Attempt(member, running, positions)
        inputs = [work.inputs[at] for at in positions]
        deadlines_s = [work.deadlines_s[at] for at in positions]
        try:
            ran: Awaitable[list[Outcome]] | Future[list[Outcome]]
            executor = member.executor
            if was_split and isinstance(executor, SplitsBatches):
                ran = executor.run_whole(work.key, inputs, deadlines_s)
            else:
                ran = executor.run(work.key, inputs, deadlines_s)
        except Exception as error:  # noqa: BLE001 (the outcome of the attempt)
            failed: FutureOutcomes = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return attempt, failed
        if isinstance(ran, Future):
            attempt.thread = ran
            return attempt, asyncio.wrap_future(ran)
        return attempt, asyncio.ensure_future(ran)

    def settle(self, attempt: Attempt, ran: FutureOutcomes) -> None:
        """Learns from an attempt that is over; gives up one that is not."""
        if ran.done() and not ran.cancelled():
            error = ran.exception()
            if error is not None and not isinstance(error, FirstlineError):
                self.failed(attempt, str(error))
            elif self.note(attempt, ran.result() if error is None else [error] * len(attempt.positions)):
                attempt.member.outcomes["refused"] += 1
            return
        thread, now_s = attempt.thread, self.clock.monotonic_s()
        runs_on = thread is not None and not thread.cancel() and not thread.done()
        ran.cancel()
        ran.add_done_callback(_discard)
        attempt.member.cut_off(attempt.running, now_s, runs_on=runs_on)
        if runs_on and thread is not None:
            loop = asyncio.get_running_loop()
            thread.add_done_callback(lambda _: loop.call_soon_threadsafe(self._freed, attempt))
        else:
            self._notify()

    def note(self, attempt: Attempt, outcomes: Sequence[Outcome]) -> str:
        """Learns from the outcomes of an attempt.

        Returns:
            The message of an error that is either the executor's or the request's: the caller counts the attempt once
            it knows which. "" if the attempt is counted.
        """
        now_s, member, key = self.clock.monotonic_s(), attempt.member, attempt.running.key
        errors = [each for each in outcomes if isinstance(each, FirstlineError)]
        at_fault = [each for each in errors if is_executor_fault(each)]
        if at_fault:
            self.failed(attempt, at_fault[0].message)
            return ""
        if unclear := [each for each in errors if isinstance(each, RuntimeFailure)]:
            member.free(attempt.running, now_s)
            self._notify()
            return unclear[0].message
        if tracing.active:  # in the context of the batch, which the callback of its end has kept
            started_s = attempt.running.started_s
            tracing.record("execute", CURRENT.get(), now_s - started_s, executor=member.name)
        was_ejected = member.is_ejected(key)
        member.end(attempt.running, "refused" if errors else "answered", now_s)
        if was_ejected and not member.is_ejected(key):
            log.info("executor answers again", executor=member.name, model=key.name)
        self._notify()
        return ""

    def failed(self, attempt: Attempt, message: str) -> None:
        """Records a failure of the executor."""
        attempt.member.end(attempt.running, "failed", self.clock.monotonic_s())
        self.count_failure(attempt.member, attempt.running.key, message)
        self._notify()

    def count_failure(self, member: Member, key: ModelKey, message: str) -> None:
        """Counts a failure against an executor, and logs its ejection.

        At most half of the executors that have the model and are not away are ejected, and one in any case: if more of
        them fail, the cause is elsewhere. The only executor of a pool is never ejected.
        """
        now_s = self.clock.monotonic_s()
        if member.executor.problem_with(key) or len(self.members) == 1:
            return  # the executor itself reports when it is unavailable and when it is back
        having = [each for each in self.members if not each.problem_with(key)]
        peers = [each.failure_share(key) for each in having if each is not member and each.takes_now(key)]
        ejected = sum(each.is_ejected(key) for each in having)
        may_eject = ejected < max(1, len(having) // 2)
        if member.count_failure(key, now_s, [each for each in peers if each is not None], may_eject=may_eject):
            left_s = member.models[key].health.left_s(now_s)
            log.warning("executor ejected", executor=member.name, model=key.name, seconds=left_s, last=message)

    def _freed(self, attempt: Attempt) -> None:
        """A thread ended a batch that was given up before."""
        attempt.member.free(attempt.running, self.clock.monotonic_s())
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _discard(ran: FutureOutcomes) -> None:
    """Retrieves the error of an attempt that was given up: an executor that closes meanwhile ends it with one."""
    if not ran.cancelled():
        ran.exception()


def is_busy(error: FirstlineError | None) -> bool:
    """Returns whether an executor is well, but has no room for the request, and says when it will have some."""
    return isinstance(error, QueueFullError | SheddingError | RateLimitedError) and error.retry_after_s is not None


def is_executor_fault(error: FirstlineError) -> bool:
    """Returns whether an error counts as a failure of the executor, and not of the request."""
    return may_succeed_elsewhere(error) and not isinstance(error, RuntimeFailure) and not is_busy(error)


def may_succeed_elsewhere(error: FirstlineError) -> bool:
    """Returns whether another executor may answer where this one failed."""
    return isinstance(error, CapacityError | LinkError | RuntimeFailure) and not isinstance(
        error, DeadlineExceededError
    )


class BatchRun:
    """The run of one batch: the first answer of each request counts.

    Args:
        attempts: starts batches on executors.
        work: the batch.

    Attributes:
        ended: done with the outcomes of all requests once each has one, or no executor is left to try. It fails with
            `EngineUnavailableError` if every request did, and with what is no `FirstlineError`. Cancelling it gives the
            batch up.
    """

    def __init__(self, attempts: Attempts, work: Work) -> None:
        self._attempts = attempts
        self._clock = attempts.clock
        self._work = work
        self._outcomes: dict[int, Outcome] = {}
        self._errors: dict[int, FirstlineError] = {}
        self._refusals: dict[int, FirstlineError] = {}  # of busy executors: they say when to send a request again
        # Requests that failed and may be at fault themselves, by the executor, and its error.
        self._unclear: dict[Member, tuple[Sequence[int], str]] = {}
        self._tried: list[Member] = []
        self._running: dict[FutureOutcomes, Attempt] = {}
        self._late: Timer | None = None
        self.ended: FutureOutcomes = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(self._give_up)

    def begin(self, member: Member, positions: Sequence[int]) -> None:
        """Starts some of the requests on an executor."""
        was_split = any(isinstance(self._errors.get(at), RuntimeFailure) for at in positions)
        attempt, ran = self._attempts.begin(member, self._work, positions, was_split=was_split)
        self._tried.append(member)
        self._running[ran] = attempt
        ran.add_done_callback(self._done)
        if len(self._attempts.members) > 1:
            running = attempt.running
            expected_s = running.expected_s
            if expected_s is None:
                expected_s = running.wait_s + self._attempts.presumed_s(running.key, running.rows)
            self._late_in(max(_LATE * expected_s, expected_s + _LATE_S))

    @property
    def is_waiting(self) -> bool:
        """Whether the batch waits for a thread of this process."""
        threads = [attempt.thread for attempt in self._running.values()]
        return len(threads) == 1 and threads[0] is not None and not (threads[0].running() or threads[0].done())

    def withdraw(self) -> bool:
        """Takes the batch back; returns False if it is more than waiting for a thread."""
        if not self.is_waiting:
            return False
        (ran, attempt), *_ = self._running.items()
        if attempt.thread is None or not attempt.thread.cancel():
            return False
        del self._running[ran]
        attempt.member.free(attempt.running, self._clock.monotonic_s())
        self.ended.cancel()
        return True

    def take(self, attempt: Attempt, outcomes: Sequence[Outcome]) -> None:
        """Takes the outcomes of an attempt; failed requests go to another executor."""
        if attempt.member not in self._tried:
            self._tried.append(attempt.member)
        unclear = self._attempts.note(attempt, outcomes)
        for at, outcome in zip(attempt.positions, outcomes, strict=True):
            if at in self._outcomes:
                continue
            if isinstance(outcome, FirstlineError) and may_succeed_elsewhere(outcome):
                self._errors[at] = outcome
                if is_busy(outcome):
                    self._refusals.setdefault(at, outcome)
            else:
                self._outcomes[at] = outcome
        if unclear:
            failed = [
                at for at, each in zip(attempt.positions, outcomes, strict=True) if isinstance(each, RuntimeFailure)
            ]
            self._unclear[attempt.member] = failed, unclear
        self._resolve_unclear()
        elsewhere = {at for each in self._running.values() for at in each.positions}
        self._repeat("retry", [at for at in self._open() if at not in elsewhere])
        if not self._running or not self._open():
            self._end()

    def _done(self, ran: FutureOutcomes) -> None:
        attempt = self._running.pop(ran, None)
        if attempt is None or self.ended.done():
            return
        error = asyncio.CancelledError() if ran.cancelled() else ran.exception()
        if error is None:
            self.take(attempt, ran.result())
        elif isinstance(error, FirstlineError):
            self.take(attempt, [error] * len(attempt.positions))
        else:  # the executor closes, or has a fault: this ends the batch
            self._attempts.settle(attempt, ran)
            if isinstance(error, asyncio.CancelledError):
                self.ended.cancel()
            else:
                self.ended.set_exception(error)

    def _resolve_unclear(self) -> None:
        """Counts the failures of executors whose requests another executor has answered."""
        for member, (failed, message) in tuple(self._unclear.items()):
            if any(at in self._outcomes for at in failed):
                del self._unclear[member]
                member.outcomes["failed"] += 1
                self._attempts.count_failure(member, self._work.key, message)

    def _open(self) -> list[int]:
        """Returns the requests without an answer."""
        return [at for at in range(len(self._work.inputs)) if at not in self._outcomes]

    def _repeat(self, reason: Literal["retry", "late"], positions: Sequence[int], within_s: float = math.inf) -> bool:
        """Starts requests that are not late on another executor, if there is one that may answer within the time."""
        now_s, deadlines_s = self._clock.monotonic_s(), self._work.deadlines_s
        left = [at for at in positions if (deadline_s := deadlines_s[at]) is None or deadline_s > now_s]
        if not left:
            return False
        is_cheap = all(is_busy(self._errors.get(at)) for at in left)
        executor = self._attempts.choose_for_repeat(self._work, left, self._tried, within_s=within_s, is_cheap=is_cheap)
        if executor is None:
            return False
        self._attempts.count_repeat(reason, self._tried[-1], executor)
        self.begin(executor, left)
        return True

    def _late_in(self, seconds: float) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._clock.call_at(self._clock.monotonic_s() + seconds, self._hedge)

    def _hedge(self) -> None:
        """Runs a late batch on a second executor, if that one is expected to end sooner; else waits as long again."""
        if not self._running:
            return
        started_s = [each.running.started_s for each in self._running.values()]
        now_s = self._clock.monotonic_s()
        if not self._repeat("late", self._open(), now_s - max(started_s)):
            self._late_in(max(_LATE_S, now_s - min(started_s)))

    def _end(self) -> None:
        by_preference = self._errors | self._refusals | self._outcomes
        found = [by_preference[at] for at in range(len(self._work.inputs)) if at in by_preference]
        away = [each for each in found if isinstance(each, EngineUnavailableError)]
        if len(away) == len(found):
            self.ended.set_exception(away[0])
        else:
            self.ended.set_result(found)

    def _give_up(self, _ended: object) -> None:
        """Gives up the attempts that still run: another executor was faster, or the caller has left."""
        for member in self._unclear:  # no other executor has answered those requests
            member.outcomes["refused"] += 1
        self._unclear.clear()
        if self._late is not None:
            self._late.cancel()
        running, self._running = self._running, {}
        for ran, attempt in running.items():
            ran.remove_done_callback(self._done)
            self._attempts.settle(attempt, ran)
