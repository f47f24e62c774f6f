"""Attempts of a batch on executors: their start, their end, and what is learned from each."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, LinkError, RuntimeFailure
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.choice import choose
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.dispatch.running_batch import RunningBatch

# The share of all batches that may run once more, and how many repeats are saved up for the death of an executor.
_REPEATS_SHARE, _REPEATS_BURST = 0.1, 64.0
_MOST_EXECUTORS = 3
# Expected time of a batch that was never measured on an executor: so many times the longest that is known elsewhere, or
# so many seconds. It only has to be longer than a third of what a healthy executor takes.
_UNKNOWN_TIMES, _UNKNOWN_S = 4.0, 0.5

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """One batch, as `Executor.run` takes it."""

    key: ModelKey
    inputs: Sequence[Tensor]
    deadlines_s: Sequence[float | None]

    def rows(self, positions: Sequence[int]) -> int:
        """Returns the rows of some of its requests, at least 1."""
        return max(1, sum([len(self.inputs[at].array) for at in positions]))

    def is_late(self, at: int, now_s: float) -> bool:
        """Returns whether the deadline of one request has passed."""
        deadline_s = self.deadlines_s[at]
        return deadline_s is not None and deadline_s <= now_s


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
    """Belongs to one event loop.

    Args:
        members: the executors.
        clock: for all durations.

    Attributes:
        repeated: batches that ran once more, by the reason: "retry" (one failed), "late" (it took too long) or "probe".
    """

    def __init__(self, members: Sequence[Member], clock: Clock) -> None:
        self.members = members
        self.clock = clock
        self.repeated: Counter[str] = Counter()
        self._listeners: list[Callable[[], None]] = []
        self._repeats = TokenBucket(_REPEATS_BURST)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever a batch ends and an executor may be free."""
        self._listeners.append(listener)

    def earn(self) -> None:
        """A batch starts for the first time, which allows a share of a repeat."""
        self._repeats.earn(_REPEATS_SHARE)

    def other(
        self, work: Work, positions: Sequence[int], tried: Sequence[Member], within_s: float = math.inf
    ) -> Member | None:
        """Returns another executor that is expected to answer within the time, or None; takes one repeat."""
        if len(tried) >= min(_MOST_EXECUTORS, len(self.members)):
            return None
        key, now_s, rows = work.key, self.clock.monotonic_s(), work.rows(positions)
        found = choose(
            member.candidate(key, rows, now_s)
            for member in self.members
            if member not in tried and not member.trouble(key)
        )
        if found is None:
            return None
        done_s = found.done_s if found.run_s is not None else found.wait_s + self.presumed_s(key, rows)
        return found.executor if done_s <= within_s and self._repeats.take(now_s) else None

    def presumed_s(self, key: ModelKey, rows: int) -> float:
        """Returns the time a batch is presumed to take where it was never measured, so that a hang is noticed."""
        there = (member.seconds(key, rows) for member in self.members if key in member.models)
        return max((_UNKNOWN_TIMES * each for each in there if each is not None), default=_UNKNOWN_S)

    def begin(
        self, member: Member, work: Work, positions: Sequence[int], *, is_probe: bool = False
    ) -> tuple[Attempt, asyncio.Future[list[Outcome]]]:
        """Starts some requests of a batch on an executor; `settle` or `note` ends the attempt."""
        running = member.begin(work.key, work.rows(positions), self.clock.monotonic_s(), is_probe=is_probe)
        attempt = Attempt(member, running, positions)
        inputs = [work.inputs[at] for at in positions]
        deadlines_s = [work.deadlines_s[at] for at in positions]
        try:
            ran = member.executor.run(work.key, inputs, deadlines_s)
        except Exception as error:  # noqa: BLE001 (the outcome of the attempt)
            failed: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return attempt, failed
        if isinstance(ran, Future):
            attempt.thread = ran
            return attempt, asyncio.wrap_future(ran)
        return attempt, asyncio.ensure_future(ran)

    def settle(self, attempt: Attempt, ran: asyncio.Future[list[Outcome]]) -> None:
        """Learns from an attempt that is over; gives up one that is not."""
        if ran.done() and not ran.cancelled():
            error = ran.exception()
            if error is None:
                self.note(attempt, ran.result())
            elif isinstance(error, FirstlineError):
                self.note(attempt, [error] * len(attempt.positions))
            else:
                self.failed(attempt, str(error))
            return
        thread, now_s = attempt.thread, self.clock.monotonic_s()
        runs_on = thread is not None and not thread.cancel() and not thread.done()
        ran.cancel()
        attempt.member.cut_off(attempt.running, now_s, runs_on=runs_on)
        if runs_on and thread is not None:
            loop = asyncio.get_running_loop()
            thread.add_done_callback(lambda _: loop.call_soon_threadsafe(self._freed, attempt))
        else:
            self._tell()

    def withdrawn(self, attempt: Attempt) -> None:
        """Forgets an attempt that no thread has begun."""
        attempt.member.freed(attempt.running, self.clock.monotonic_s())

    def note(self, attempt: Attempt, outcomes: Sequence[Outcome]) -> None:
        """Learns from the outcomes of an attempt."""
        now_s, member, key = self.clock.monotonic_s(), attempt.member, attempt.running.key
        errors = [each for each in outcomes if isinstance(each, FirstlineError)]
        at_fault = [each for each in errors if is_executors(each)]
        if at_fault:
            self.failed(attempt, at_fault[0].message)
            return
        if errors:
            member.refused(attempt.running, now_s)
        else:
            was_ejected = member.is_ejected(key)
            member.answered(attempt.running, now_s)
            if was_ejected and not member.is_ejected(key):
                log.info("executor answers again", executor=member.name, model=key.name)
        self._tell()

    def failed(self, attempt: Attempt, message: str) -> None:
        """Records a failure of the executor."""
        attempt.member.failed(attempt.running, self.clock.monotonic_s())
        self.doubt(attempt.member, attempt.running.key, message)
        self._tell()

    def doubt(self, member: Member, key: ModelKey, message: str) -> None:
        """Counts a failure against an executor, and logs its ejection. The only executor is never ejected."""
        now_s = self.clock.monotonic_s()
        if len(self.members) > 1 and member.doubted(key, now_s):
            left_s = member.models[key].health.left_s(now_s)
            log.warning("executor ejected", executor=member.name, model=key.name, seconds=left_s, last=message)

    def _freed(self, attempt: Attempt) -> None:
        """A thread ended a batch that was given up before."""
        attempt.member.freed(attempt.running, self.clock.monotonic_s())
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def is_executors(error: FirstlineError) -> bool:
    """Returns whether an error is the executor's own, whatever the request was."""
    return isinstance(error, CapacityError | LinkError) and not isinstance(error, DeadlineExceededError)


def may_do_better(error: FirstlineError) -> bool:
    """Returns whether another executor may answer where this one failed."""
    return is_executors(error) or isinstance(error, RuntimeFailure)
