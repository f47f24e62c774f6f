"""The pool: starts each batch on one of its members, and repeats it on another if it fails or is late.

A batch may run twice, because inference has no side effects: the caller of the pool counts, audits and records each
request once. The number of repeats is limited: while everything fails, they would add to the load. A member that
gets no work, or that was ejected, is probed: it runs a copy of one request.

An attempt (`BatchAttempt`) is some requests of a batch on one member. `Member.outcomes` counts it once, by its end:

    state      what leads to it                             function                       counted as
    running    the batch starts, or requests are repeated   `BatchRun.begin`               not yet; takes a slot
    answered   no request has an error                      `Dispatcher.end_attempt`       "answered"
    refused    an error of a request, or no room            `Dispatcher.end_attempt`       "refused"
    failed     the member is at fault                       `Dispatcher.end_failed`        "failed"
    unclear    a `RuntimeFailure`: the member or a          `Dispatcher.end_attempt`       not yet; frees its slot
               request is at fault
     -> failed   another member answers such a request      `BatchRun.take_outcomes`       "failed"
     -> refused  the batch ends without such an answer      `BatchRun._on_batch_ended`     "refused"
    cut off    its batch ends first, or it is cancelled     `Dispatcher.end_or_cut_off`    "cut_off"

Only an answered attempt counts for the health of its member, and only a failed one against it (`count_failure`). The
forecast learns from answered attempts, and from those that are cut off after their expected time. An attempt that is
cut off in a thread keeps its slot until the thread ends. An attempt that becomes unclear after the end of its batch is
refused at once. A batch that is answered on the event loop makes no attempt: `Member.answered_on_loop` counts it.

A batch (`BatchRun`) starts its first attempt in `begin`. Four events move it until `BatchRun.ended` is done:

    event                          function             what follows
    an attempt has outcomes        `take_outcomes`      failed requests are repeated; the batch ends once each request
                                                        has an answer, or no attempt runs
    an attempt is cancelled, or    `_on_attempt_done`   the batch is cancelled, or ends with that error
    raises an unexpected error
    an attempt is late             `_repeat_if_late`    requests without an answer are repeated, if another member
                                                        answers sooner; a probe is cancelled
    the caller cancels `ended`     `_on_batch_ended`    the attempts that still run are cut off, as after each other end
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Literal

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock, Timer
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
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import ModelKey, row_count
from firstline_gateway.executors.base import Deadlines, ExecutionReport, Inputs, Outcome, SplitsBatches
from firstline_gateway.executors.dispatch.member import BatchAttempt, Member, earliest_completion
from firstline_gateway.executors.dispatch.placement import PoolSnapshot, problem_with
from firstline_gateway.executors.dispatch.reports import execution_report
from firstline_gateway.models.repository import ServedModel

# Repeats that each new batch allows; and repeats that may be saved up, for the death of a member.
_REPEATS_PER_BATCH, _MOST_REPEATS = 0.1, 64.0
# Maximum number of executors that one batch is tried on, and of servers of each of them.
_MOST_EXECUTORS, _MOST_SERVERS = 3, 3
# Time after which a batch is late: a multiple of its expected time, and the least seconds beyond that time.
_LATE, _LATE_S = 3.0, 0.02
# Expected time of a batch that was never measured on a member: a multiple of the longest time on another one, or
# these seconds if there is none. It only has to be longer than a third of what a healthy member takes.
_UNKNOWN_TIMES, _UNKNOWN_S = 4.0, 0.5
# Time after which a probe is given up: a multiple of its expected time, and the least seconds. It counts against
# `PROBE_SHARE`: the longer a probe may hang, the longer a member that has recovered waits for the next one.
_PROBE_LATE, _PROBE_S = 20.0, 0.25

FutureOutcomes = asyncio.Future[list[Outcome]]
Running = FutureOutcomes | Future[list[Outcome]]
Repeat = Literal["retry", "late", "probe"]

log = logger(__name__)


class Dispatcher:
    """Runs batches on the members of the pool. Belongs to one event loop.

    Args:
        members: of the pool, at least one.
        clock: for all durations and deadlines.

    Attributes:
        repeats: the repeats that are left.
        is_closing: whether no repeats start any more.
    """

    def __init__(self, members: Sequence[Member], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.members = tuple(members)
        self.clock = clock
        self._local = next((each for each in self.members if each.in_process is not None), None)
        self._listeners: list[Callable[[], None]] = []
        self._runs: set[FutureOutcomes] = set()
        self._probes: set[FutureOutcomes] = set()
        self.repeats = TokenBucket(_MOST_REPEATS)
        self._repeated: Counter[str] = Counter()
        self.is_closing = False

    async def start(self) -> None:
        """Starts the executors."""
        await asyncio.gather(*(member.executor.start() for member in self.members))

    def problem_with(self, key: ModelKey) -> str:
        """Returns why a model in memory cannot run at the moment, as sentences, or "" if it can."""
        return problem_with(self.members, key)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever a member may have become free, or is late."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Calls the listeners."""
        for listener in self._listeners:
            listener()

    def snapshot(self) -> PoolSnapshot:
        """Returns the members as they are now, to place batches."""
        return PoolSnapshot(self.members, self.clock.monotonic_s())

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        """Returns a model to prepare its inputs in this process; None if all members prepare them elsewhere."""
        for each in self.members:
            if each.prepares_here is not None and (found := each.prepares_here.loaded_model(key)) is not None:
                return found
        return None

    def report(self) -> ExecutionReport:
        """Returns the counts of all executors and servers, and the state of each executor by its name."""
        return execution_report(self.members, self._repeated, self.clock.monotonic_s())

    # Batches.

    def loop_times(self, key: ModelKey) -> LoopTimes | None:
        """Returns the times of a model on the event loop; None if they are unknown or its batches have to be placed."""
        placed = self._local.models.get(key) if self._local is not None else None
        return placed.loop_times if placed is not None and placed.health.trusted else None

    def run_on_loop(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> list[Outcome] | FutureOutcomes:
        """Runs a batch of a quick model in this turn of the event loop; see `loop_times`.

        Returns:
            The outcomes, or a future if the batch runs on another member after all.
        """
        member, started_s = self._local, self.clock.monotonic_s()
        assert member is not None and member.in_process is not None  # noqa: S101 (see `loop_times`)
        if len(self.members) > 1:
            self._count_new_batch(member)
        try:
            outcomes = member.in_process.run_on_loop(key, inputs, deadlines_s)
        except Exception as error:
            self.end_failed(member.begin(key, sum(map(row_count, inputs)), started_s), str(error))
            raise
        if not [outcome for outcome in outcomes if isinstance(outcome, FirstlineError)]:
            member.answered_on_loop(key, self.clock.monotonic_s())
            return outcomes
        run = BatchRun(self, key, inputs, deadlines_s)
        run.take_outcomes(member.begin(key, run.rows(run.all), started_s, run.all), outcomes)
        return run.ended.result() if run.ended.done() else self._follow(run)

    def run_on(self, member: Member, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> FutureOutcomes:
        """Starts a batch on one member, whose slot is taken from now on; see `BatchRun.ended`."""
        if len(self.members) > 1:
            self._count_new_batch(member)
            self._probe(key, inputs[:1], member)
        run = BatchRun(self, key, inputs, deadlines_s)
        run.begin(member, run.all)
        return self._follow(run)

    def _count_new_batch(self, member: Member) -> None:
        """Counts a batch that starts for the first time; each such batch allows a share of a repeat."""
        self.repeats.earn(_REPEATS_PER_BATCH)
        if member.hedges is not None:
            member.hedges.earn(member.hedges.share)

    def _follow(self, run: BatchRun) -> FutureOutcomes:
        self._runs.add(run.ended)
        run.ended.add_done_callback(self._runs.discard)
        return run.ended

    # Repeats.

    def count_repeat(self, reason: Repeat, first: Member, second: Member) -> None:
        """Counts a batch that runs on a second member as well; see `ExecutionReport.repeats`."""
        if first.name != second.name:
            self._repeated[f"executor_{reason}"] += 1
        else:
            self._repeated["hedge" if reason == "late" else reason] += 1

    def presumed_s(self, key: ModelKey, rows: int) -> float:
        """Returns the time a batch is presumed to take where it was never measured, so that a hang is noticed."""
        expected_s = (member.seconds(key, rows) for member in self.members if key in member.models)
        return max((_UNKNOWN_TIMES * each for each in expected_s if each is not None), default=_UNKNOWN_S)

    # The ends of an attempt; see the table above.

    def end_attempt(self, attempt: BatchAttempt, outcomes: Sequence[Outcome]) -> str:
        """Ends an attempt that has outcomes: it is answered, refused, failed or unclear.

        Returns:
            The message of the error if the attempt is unclear: the caller counts it once it knows whether the member
            or a request is at fault. Otherwise "".
        """
        now_s, member, key = self.clock.monotonic_s(), attempt.member, attempt.key
        errors = [each for each in outcomes if isinstance(each, FirstlineError)]
        if at_fault := [each for each in errors if is_executor_fault(each)]:
            self.end_failed(attempt, at_fault[0].message)
            return ""
        if unclear := [each for each in errors if isinstance(each, RuntimeFailure)]:
            self._free_slot(attempt)
            return unclear[0].message
        if tracing.active:  # in the context of the batch, which the callback of its end has kept
            tracing.record("execute", CURRENT.get(), now_s - attempt.started_s, executor=member.name)
        was_ejected = member.is_ejected(key)
        member.end(attempt, "refused" if errors else "answered", now_s)
        if was_ejected and not member.is_ejected(key):
            log.info("executor answers again", executor=member.name, model=key.name)
        self.notify()
        return ""

    def end_failed(self, attempt: BatchAttempt, message: str) -> None:
        """Ends an attempt that failed because of its member."""
        attempt.member.free_slot(attempt, self.clock.monotonic_s())
        self.count_failure(attempt.member, attempt.key, message)
        self.notify()

    def end_or_cut_off(self, attempt: BatchAttempt, ran: Running) -> None:
        """Ends an attempt of a batch that has ended, or ends now: by its outcomes; cuts it off if it has none."""
        if ran.done() and not ran.cancelled():
            error = ran.exception()
            if error is not None and not isinstance(error, FirstlineError):
                self.end_failed(attempt, str(error))
            elif self.end_attempt(attempt, ran.result() if error is None else [error] * len(attempt.positions)):
                attempt.member.outcomes["refused"] += 1
            return
        runs_on = not ran.cancel() and isinstance(ran, Future) and not ran.done()  # a thread cannot be stopped
        attempt.member.cut_off(attempt, self.clock.monotonic_s(), runs_on=runs_on)
        if runs_on:
            _call_at_end(ran, lambda _: self._free_slot(attempt))
        else:
            # A member that closes meanwhile ends the attempt with an error.
            ran.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
            self.notify()

    def _free_slot(self, attempt: BatchAttempt) -> None:
        """Gives back the slot of an attempt that is counted later, or was counted before."""
        attempt.member.free_slot(attempt, self.clock.monotonic_s())
        self.notify()

    def count_failure(self, member: Member, key: ModelKey, message: str) -> None:
        """Counts a failed attempt, for the metrics and against the member; logs its ejection.

        At most half of the members that have the model and are not away are ejected: if more of them fail, the cause
        is elsewhere.
        """
        now_s = self.clock.monotonic_s()
        member.outcomes["failed"] += 1
        if member.problem_with(key) or len(self.members) == 1:
            return  # the executor itself reports when it is unavailable and when it is back
        health = member.models[key].health
        having = [each for each in self.members if not each.problem_with(key)]
        peers = [each.models[key].health.failure_share for each in having if each is not member and each.takes_now(key)]
        may_eject = sum(each.is_ejected(key) for each in having) < len(having) // 2
        if health.failed(now_s, [each for each in peers if each is not None], may_eject=may_eject):
            left_s = health.left_s(now_s)
            log.warning("executor ejected", executor=member.name, model=key.name, seconds=left_s, last=message)

    # Probes: copies of one request, which measure a member without work.

    def _probe(self, key: ModelKey, inputs: Inputs, chosen: Member) -> None:
        now_s = self.clock.monotonic_s()
        for member in self.members:
            if member is not chosen and not member.problem_with(key) and member.may_probe(key, now_s):
                self.count_repeat("probe", chosen, member)
                run = BatchRun(self, key, inputs, [None], is_probe=True)
                run.begin(member, run.all)
                self._probes.add(run.ended)
                run.ended.add_done_callback(self._probes.discard)

    # Models come and go.

    async def put(self, served: ServedModel) -> None:
        """Places a model on each member that may run it and can load it.

        A model that a member cannot load is logged. `served.loaded` is closed if no member uses it.
        """
        taken = False
        await self.drop(served.key)  # probes may still run on it
        for member in self.members:
            if not member.takes(served.key.name):
                continue
            mine = served
            if member.load is not None:
                try:
                    mine = replace(served, loaded=await asyncio.to_thread(member.load, served))
                except FirstlineError as error:
                    log.error("model not loaded", executor=member.name, model=served.key.name, error=error.message)
                    continue
            else:
                taken = taken or member is self._local
            await member.executor.put(mine)
            member.place(mine, member.profiled(mine))
        if served.loaded is not None and not taken:
            served.loaded.close()

    async def drop(self, key: ModelKey) -> None:
        """See `Executor.drop`."""
        for member in self.members:
            if key in member.models:
                member.displace(key)
                await member.executor.drop(key)

    async def close(self, timeout_s: float) -> bool:
        """See `Executor.close`."""
        if self._runs:
            await asyncio.wait(self._runs, timeout=timeout_s)
        self.is_closing = True
        for probe in tuple(self._probes):
            probe.cancel()
        return all(await asyncio.gather(*(member.executor.close(timeout_s) for member in self.members)))


def is_busy(error: FirstlineError | None) -> bool:
    """Returns whether a member is well, but has no room for the request, and says when it will have some."""
    return isinstance(error, QueueFullError | SheddingError | RateLimitedError) and error.retry_after_s is not None


def is_executor_fault(error: FirstlineError) -> bool:
    """Returns whether an error counts as a failure of the member, and not of the request."""
    return may_succeed_elsewhere(error) and not isinstance(error, RuntimeFailure) and not is_busy(error)


def may_succeed_elsewhere(error: FirstlineError) -> bool:
    """Returns whether another member may answer where this one failed."""
    return isinstance(error, CapacityError | LinkError | RuntimeFailure) and not isinstance(
        error, DeadlineExceededError
    )


class BatchRun:
    """The run of one batch: the first answer of each request counts.

    Args:
        dispatcher: starts attempts on members.
        key: the model.
        inputs: of each request; see `Executor.run`.
        deadlines_s: of each request.
        is_probe: whether it is a copy that only measures a member: it is not repeated, and given up if it hangs.

    Attributes:
        all: the positions of its requests.
        ended: done with the outcomes of all requests once each has one, or no member is left to try. It fails with
            `EngineUnavailableError` if every request did, and with what is no `FirstlineError`. Cancelling it gives the
            batch up.
    """

    def __init__(
        self, dispatcher: Dispatcher, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines, *, is_probe: bool = False
    ) -> None:
        self._key = key
        self._inputs = inputs
        self._deadlines_s = deadlines_s
        self.all = range(len(inputs))
        self._dispatcher = dispatcher
        self._is_probe = is_probe
        self._clock = dispatcher.clock
        self._outcomes: dict[int, Outcome] = {}
        self._errors: dict[int, FirstlineError] = {}
        # By the member of an unclear attempt: its requests that failed, and the message of the error.
        self._unclear: dict[Member, tuple[Sequence[int], str]] = {}
        self._tried: list[Member] = []
        self._running: dict[Running, BatchAttempt] = {}
        self._late: Timer | None = None
        self.ended: FutureOutcomes = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(self._on_batch_ended)

    # The start of an attempt.

    def begin(self, member: Member, positions: Sequence[int]) -> None:
        """Starts some of the requests on a member."""
        rows, now_s = self.rows(positions), self._clock.monotonic_s()
        attempt = member.begin(self._key, rows, now_s, positions, is_probe=self._is_probe)
        ran = self._call_executor(attempt)
        self._tried.append(member)
        self._running[ran] = attempt
        _call_at_end(ran, self._on_attempt_done)
        if len(self._dispatcher.members) > 1:
            run_s = attempt.run_s
            presumed_s = self._dispatcher.presumed_s(self._key, rows) if run_s is None else run_s
            if self._is_probe:
                late_s = max(_PROBE_S, presumed_s if run_s is None else _PROBE_LATE * run_s / attempt.pace)
            else:
                late_s = max(_LATE * (attempt.wait_s + presumed_s), attempt.wait_s + presumed_s + _LATE_S)
            self._set_late_timer(late_s)

    def _call_executor(self, attempt: BatchAttempt) -> Running:
        """Calls the member of an attempt. Requests that failed elsewhere one by one are not repeated one by one."""
        inputs = [self._inputs[at] for at in attempt.positions]
        deadlines_s = [self._deadlines_s[at] for at in attempt.positions]
        was_split = any(isinstance(self._errors.get(at), RuntimeFailure) for at in attempt.positions)
        executor = attempt.member.executor
        try:
            ran: Awaitable[list[Outcome]] | Future[list[Outcome]]
            if was_split and isinstance(executor, SplitsBatches):
                ran = executor.run_whole(self._key, inputs, deadlines_s)
            else:
                ran = executor.run(self._key, inputs, deadlines_s)
        except Exception as error:  # noqa: BLE001 (the outcome of the attempt)
            failed: FutureOutcomes = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed
        return ran if isinstance(ran, Future) else asyncio.ensure_future(ran)

    def _set_late_timer(self, seconds: float) -> None:
        """Sets when the newest attempt is late; replaces the earlier time."""
        if self._late is not None:
            self._late.cancel()
        self._late = self._clock.call_at(self._clock.monotonic_s() + seconds, self._repeat_if_late)

    # Events: an attempt is late, or ends.

    def _repeat_if_late(self) -> None:
        """Runs a late batch on a second member, if that one is expected to end sooner; else waits as long again.

        A late probe is given up. Requests that wait for the member of a late batch are placed again.
        """
        if self._is_probe:
            self.ended.cancel()
        if self.ended.done():  # otherwise in this turn of the event loop; `_on_batch_ended` has yet to stop the timer
            return
        started_s = [each.started_s for each in self._running.values()]
        now_s = self._clock.monotonic_s()
        if not self._repeat("late", self._unanswered(), now_s - max(started_s)):
            self._set_late_timer(max(_LATE_S, now_s - min(started_s)))
        self._dispatcher.notify()

    def _on_attempt_done(self, ran: Running) -> None:
        """Takes the outcomes of an attempt; any other error, or a cancelled attempt, ends the batch."""
        attempt = self._running.pop(ran, None)
        if attempt is None:
            return
        if self.ended.done():  # in the same turn of the event loop, `_on_batch_ended` comes later
            self._dispatcher.end_or_cut_off(attempt, ran)
            return
        error = asyncio.CancelledError() if ran.cancelled() else ran.exception()
        if error is None:
            self.take_outcomes(attempt, ran.result())
        elif isinstance(error, FirstlineError):
            self.take_outcomes(attempt, [error] * len(attempt.positions))
        else:  # the executor closes, or has a fault: this ends the batch
            self._dispatcher.end_or_cut_off(attempt, ran)
            if isinstance(error, asyncio.CancelledError):
                self.ended.cancel()
            else:
                self.ended.set_exception(error)

    def take_outcomes(self, attempt: BatchAttempt, outcomes: Sequence[Outcome]) -> None:
        """Ends an attempt, keeps the first answer of each request, and repeats failed requests on another member."""
        if attempt.member not in self._tried:
            self._tried.append(attempt.member)
        unclear_message = self._dispatcher.end_attempt(attempt, outcomes)
        unclear = []
        for at, outcome in zip(attempt.positions, outcomes, strict=True):
            if isinstance(outcome, RuntimeFailure):
                unclear.append(at)
            if at in self._outcomes:
                continue
            if isinstance(outcome, FirstlineError) and may_succeed_elsewhere(outcome):
                if not is_busy(self._errors.get(at)):  # it says when to send the request again
                    self._errors[at] = outcome
            else:
                self._outcomes[at] = outcome
        if unclear_message:
            self._unclear[attempt.member] = unclear, unclear_message
        for member, (mine, message) in tuple(self._unclear.items()):
            if any(at in self._outcomes for at in mine):  # another executor has answered one of its requests
                del self._unclear[member]
                self._dispatcher.count_failure(member, self._key, message)
        elsewhere = {at for each in self._running.values() for at in each.positions}
        self._repeat("retry", [at for at in self._unanswered() if at not in elsewhere])
        if not self._running or not self._unanswered():
            self._end_batch()

    # Repeats of requests without an answer.

    def _repeat(self, reason: Repeat, positions: Sequence[int], within_s: float = math.inf) -> bool:
        """Starts requests that are not overdue on another member, if one may answer within the time.

        A repeat on another server of the same executor because of lateness counts against the hedges of that executor.
        If all members so far refused the requests at once, a repeat adds no load, and is always allowed.
        """
        dispatcher, key, now_s = self._dispatcher, self._key, self._clock.monotonic_s()
        left = [at for at in positions if (deadline_s := self._deadlines_s[at]) is None or deadline_s > now_s]
        if not left or dispatcher.is_closing or self._is_probe:
            return False
        last, rows = self._tried[-1], self.rows(left)
        hedges = last.hedges if reason == "late" else None
        members = [each for each in self._untried() if not each.problem_with(key)]
        if hedges is not None and hedges.wait_s(now_s) > 0:
            members = [each for each in members if each.name != last.name]
        found = earliest_completion(member.candidate(key, rows, now_s) for member in members)
        if found is None:
            return False
        done_s = found.done_s if found.run_s is not None else found.wait_s + dispatcher.presumed_s(key, rows)
        if done_s > within_s:
            return False
        if hedges is not None and found.member.name == last.name:
            hedges.take(now_s)
        elif not all(is_busy(self._errors.get(at)) for at in left) and not dispatcher.repeats.take(now_s):
            return False
        dispatcher.count_repeat(reason, last, found.member)
        self.begin(found.member, left)
        return True

    def _untried(self) -> list[Member]:
        """Returns the members that the batch may still run on, within the limits of executors and servers of each."""
        servers = Counter(member.name for member in self._tried)
        may_add = len(servers) < _MOST_EXECUTORS
        return [
            each
            for each in self._dispatcher.members
            if each not in self._tried and servers[each.name] < _MOST_SERVERS and (may_add or servers[each.name])
        ]

    # The end of the batch.

    def _end_batch(self) -> None:
        """Sets the outcomes of the batch, or its error if every member was away."""
        by_preference = self._errors | self._outcomes
        found = [by_preference[at] for at in self.all if at in by_preference]
        away = [each for each in found if isinstance(each, EngineUnavailableError)]
        if len(away) == len(found) and not self._is_probe:
            self.ended.set_exception(away[0])
        else:
            self.ended.set_result(found)

    def _on_batch_ended(self, _ended: object) -> None:
        """Counts the unclear attempts, and cuts off those that run: others were faster, or the caller has left."""
        for member in self._unclear:  # no other executor has answered those requests
            member.outcomes["refused"] += 1
        self._unclear.clear()
        if self._late is not None:
            self._late.cancel()
        running, self._running = self._running, {}
        for ran, attempt in running.items():
            self._dispatcher.end_or_cut_off(attempt, ran)

    # Its requests.

    def rows(self, positions: Sequence[int]) -> int:
        """Returns the rows of some of its requests, at least 1."""
        return max(1, sum([row_count(self._inputs[at]) for at in positions]))

    def _unanswered(self) -> list[int]:
        """Returns the requests without an answer."""
        return [at for at in self.all if at not in self._outcomes]


def _call_at_end(ran: Running, callback: Callable[[Any], None]) -> None:
    """Calls back on the event loop, in the present context, when an attempt ends; not after the end of the loop.

    A future of asyncio around that of a thread would call back a turn of the event loop later, in which the thread has
    nothing to run.
    """
    if not isinstance(ran, Future):
        ran.add_done_callback(callback)
        return
    loop, context = asyncio.get_running_loop(), copy_context()

    def ended(future: Future[list[Outcome]]) -> None:
        if not loop.is_closed():  # a thread that cannot be stopped may end later than the gateway
            loop.call_soon_threadsafe(callback, future, context=context)

    ran.add_done_callback(ended)
