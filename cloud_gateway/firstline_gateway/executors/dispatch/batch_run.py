"""One batch: another executor gets it if the first fails or is late, and the first answer of each request counts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from firstline_core.clock import Timer
from firstline_core.errors import EngineUnavailableError, FirstlineError, RuntimeFailure
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.attempts import Attempt, Attempts, Work, may_do_better
from firstline_gateway.executors.dispatch.member import Member

# A batch is late once it has taken so many times what was expected, and at least so much longer.
_LATE, _LATE_S = 3.0, 0.02


class BatchRun:
    """The run of one batch.

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
        # Executors that failed on a request which may be at fault itself, and their errors.
        self._doubts: dict[int, tuple[Member, str]] = {}
        self._tried: list[Member] = []
        self._running: dict[asyncio.Future[list[Outcome]], Attempt] = {}
        self._late: Timer | None = None
        self.ended: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(self._give_up)

    def begin(self, member: Member, positions: Sequence[int]) -> None:
        """Starts some of the requests on an executor."""
        attempt, ran = self._attempts.begin(member, self._work, positions)
        self._tried.append(member)
        self._running[ran] = attempt
        ran.add_done_callback(self._done)
        if len(self._attempts.members) > 1:
            self._wait_for(attempt)

    def take(self, attempt: Attempt, outcomes: Sequence[Outcome]) -> None:
        """Takes the outcomes of an attempt on the event loop; failed requests go to another executor."""
        self._tried.append(attempt.member)
        self._take(attempt, outcomes)

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
        self._attempts.withdrawn(attempt)
        self.ended.cancel()
        return True

    def _done(self, ran: asyncio.Future[list[Outcome]]) -> None:
        attempt = self._running.pop(ran, None)
        if attempt is None or self.ended.done():
            return
        error = asyncio.CancelledError() if ran.cancelled() else ran.exception()
        if error is None:
            self._take(attempt, ran.result())
        elif isinstance(error, FirstlineError):
            self._take(attempt, [error] * len(attempt.positions))
        else:  # the executor closes, or has a fault: this ends the batch
            self._attempts.settle(attempt, ran)
            if isinstance(error, asyncio.CancelledError):
                self.ended.cancel()
            else:
                self.ended.set_exception(error)

    def _take(self, attempt: Attempt, outcomes: Sequence[Outcome]) -> None:
        self._attempts.note(attempt, outcomes)
        for at, outcome in zip(attempt.positions, outcomes, strict=True):
            if at in self._outcomes:
                continue
            if isinstance(outcome, FirstlineError) and may_do_better(outcome):
                self._errors[at] = outcome
                if isinstance(outcome, RuntimeFailure):
                    self._doubts.setdefault(at, (attempt.member, outcome.message))
            else:
                self._outcomes[at] = outcome
        answered = [at for at in attempt.positions if at in self._doubts and at in self._outcomes]
        for member, message in dict(self._doubts.pop(at) for at in answered).items():  # another one answered the same
            self._attempts.doubt(member, self._work.key, message)
        elsewhere = {at for other in self._running.values() for at in other.positions}
        self._repeat("retry", [at for at in self._open() if at not in elsewhere])
        if not self._running or not self._open():
            self._end()

    def _open(self) -> list[int]:
        """Returns the requests without an answer."""
        return [at for at in range(len(self._work.inputs)) if at not in self._outcomes]

    def _repeat(self, reason: str, positions: Sequence[int], within_s: float = math.inf) -> bool:
        """Starts requests that are not late on another executor, if there is one that may answer within the time."""
        now_s = self._clock.monotonic_s()
        left = [at for at in positions if not self._work.is_late(at, now_s)]
        other = self._attempts.other(self._work, left, self._tried, within_s) if left else None
        if other is None:
            return False
        self._attempts.repeated[reason] += 1
        self.begin(other, left)
        return True

    def _wait_for(self, attempt: Attempt) -> None:
        """Sets the time at which the newest attempt is late."""
        running = attempt.running
        expected_s = running.expected_s
        if expected_s is None:
            expected_s = running.wait_s + self._attempts.presumed_s(running.key, running.rows)
        self._late_in(max(_LATE * expected_s, expected_s + _LATE_S))

    def _late_in(self, seconds: float) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._clock.call_at(self._clock.monotonic_s() + seconds, self._is_late)

    def _is_late(self) -> None:
        """Runs the batch on a second executor, if that one is expected to end sooner; else waits as long again."""
        if not self._running:
            return
        started_s = [each.running.started_s for each in self._running.values()]
        now_s = self._clock.monotonic_s()
        if not self._repeat("late", self._open(), now_s - max(started_s)):
            self._late_in(max(_LATE_S, now_s - min(started_s)))

    def _end(self) -> None:
        outcomes = [self._outcomes.get(at, self._errors.get(at)) for at in range(len(self._work.inputs))]
        found = [each for each in outcomes if each is not None]
        away = [each for each in found if isinstance(each, EngineUnavailableError)]
        if len(away) == len(found):
            self.ended.set_exception(away[0])
        else:
            self.ended.set_result(found)

    def _give_up(self, _ended: object) -> None:
        """Gives up the attempts that still run: another executor was faster, or the caller has left."""
        if self._late is not None:
            self._late.cancel()
        running, self._running = self._running, {}
        for ran, attempt in running.items():
            ran.remove_done_callback(self._done)
            self._attempts.settle(attempt, ran)
