"""One executor is asked: what goes there, what comes back, what is learned from it, and whom to ask after that."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, LinkError, RuntimeFailure
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import Offer, Outcome
from firstline_gateway.executors.dispatch.choice import choose
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.dispatch.running import Running

# Of all batches, how many may run once more; and how many of that are saved up, for all that one executor has under
# way when it dies.
_REPEATS_SHARE, _REPEATS_BURST = 0.1, 64.0
_MOST_EXECUTORS = 3
# What was never measured somewhere is taken to take so many times what it takes where that is known to be most; and so
# long where nobody knows. It only has to be so long that hardly anything that is well takes three times as long.
_UNKNOWN_TIMES, _UNKNOWN_S = 4.0, 0.5

log = logger(__name__)

Ended = list[Outcome]


@dataclass(frozen=True, slots=True)
class Work:
    """One batch, as `Executor.run` takes it."""

    key: ModelKey
    inputs: Sequence[Tensor]
    deadlines_s: Sequence[float | None]

    def rows(self, positions: Sequence[int]) -> int:
        """Of some of its requests, at least 1."""
        return max(1, sum(len(self.inputs[at].array) for at in positions))

    def is_late(self, at: int, now_s: float) -> bool:
        """Whether the deadline of one request has passed."""
        deadline_s = self.deadlines_s[at]
        return deadline_s is not None and deadline_s <= now_s


@dataclass(slots=True, eq=False)
class Attempt:
    """Some requests of a batch, at one executor.

    Args:
        member: the executor.
        running: what it has with them.
        positions: of the requests in the batch.
        offer: where threads run them, once they have it: what one of them has begun nobody can stop.
    """

    member: Member
    running: Running
    positions: Sequence[int]
    offer: Offer | None = None


class Asking:
    """Belongs to one event loop.

    Args:
        members: whom to ask.
        clock: for all durations.

    Attributes:
        repeated: batches that ran once more, by why: "retry" (one failed), "late" (it took too long) or "probe".
        on_free: called when a batch has ended.
    """

    def __init__(self, members: Sequence[Member], clock: Clock) -> None:
        self.members = members
        self.clock = clock
        self.repeated: Counter[str] = Counter()
        self.on_free: Callable[[], None] = lambda: None
        self._repeats = TokenBucket(_REPEATS_BURST)

    def earn(self) -> None:
        """A batch is asked for the first time."""
        self._repeats.earn(_REPEATS_SHARE)

    def other(
        self, work: Work, positions: Sequence[int], tried: Sequence[Member], within_s: float = math.inf
    ) -> Member | None:
        """Who may do better, in that time; counted against what may be repeated. None where nobody may."""
        key, now_s = work.key, self.clock.monotonic_s()
        if len(tried) >= _MOST_EXECUTORS:
            return None
        rows = work.rows(positions)
        found = choose(
            member.candidate(key, rows, now_s)
            for member in self.members
            if member not in tried and not member.trouble(key)
        )
        if found is None:
            return None
        done_s = found.done_s if found.run_s is not None else found.wait_s + self.presumed_s(key, rows)
        return found.name if done_s <= within_s and self._repeats.take(now_s) else None

    def presumed_s(self, key: ModelKey, rows: int) -> float:
        """What a batch is taken to take where nobody has measured it, so that one that hangs there is noticed."""
        there = (member.seconds(key, rows) for member in self.members if member.has(key))
        return max((_UNKNOWN_TIMES * each for each in there if each is not None), default=_UNKNOWN_S)

    def begin(
        self, member: Member, work: Work, positions: Sequence[int], *, is_probe: bool = False
    ) -> tuple[Attempt, asyncio.Task[Ended]]:
        """Asks an executor for some requests of a batch; see `settle`."""
        running = member.begin(work.key, work.rows(positions), self.clock.monotonic_s(), is_probe=is_probe)
        attempt = Attempt(member, running, positions)
        return attempt, asyncio.create_task(_outcomes(attempt, work))

    def settle(self, attempt: Attempt, asked: asyncio.Task[Ended]) -> None:
        """Learns from what became of an attempt that is over; one that is not is given up."""
        if asked.done() and not asked.cancelled():
            if (error := asked.exception()) is None:
                self.note(attempt, asked.result())
            else:
                self._failed(attempt, str(error))
                self.on_free()
            return
        asked.cancel()
        offer = attempt.offer
        runs_on = offer is not None and not offer.withdraw() and not offer.ran.done()
        attempt.member.cut_off(attempt.running, self.clock.monotonic_s(), runs_on=runs_on)
        if runs_on and offer is not None:
            asyncio.wrap_future(offer.ran).add_done_callback(partial(self._freed, attempt))
        else:
            self.on_free()

    def _freed(self, attempt: Attempt, ran: asyncio.Future[list[Outcome]]) -> None:
        """A thread is done with what was given up long ago."""
        if not ran.cancelled():
            ran.exception()  # nobody waits for it
        attempt.member.freed(attempt.running, self.clock.monotonic_s())
        self.on_free()

    def note(self, attempt: Attempt, ended: Ended) -> None:
        """Learns from what came back of an attempt."""
        now_s, member = self.clock.monotonic_s(), attempt.member
        errors = [each for each in ended if isinstance(each, FirstlineError)]
        at_fault = [each for each in errors if is_executors(each)]
        if at_fault:
            self._failed(attempt, at_fault[0].message)
        elif errors:
            member.refused(attempt.running, now_s)
        else:
            was_left_alone = member.left_alone(attempt.running.key)
            member.answered(attempt.running, now_s)
            if was_left_alone and not member.left_alone(attempt.running.key):
                log.info("executor answers again", executor=member.name, model=attempt.running.key.name)
        self.on_free()

    def _failed(self, attempt: Attempt, message: str) -> None:
        attempt.member.failed(attempt.running, self.clock.monotonic_s())
        self.doubt(attempt.member, attempt.running.key, message)

    def doubt(self, member: Member, key: ModelKey, message: str) -> None:
        """An executor could not do what executors do with a batch of a model; that it is left alone now is told."""
        now_s = self.clock.monotonic_s()
        if member.doubted(key, now_s):
            left_s = member.standing(key).left_s(now_s)
            log.warning("executor left alone", executor=member.name, model=key.name, seconds=left_s, last=message)


async def _outcomes(attempt: Attempt, work: Work) -> Ended:
    """One executor's; what it raises is each request's outcome."""
    inputs = [work.inputs[at] for at in attempt.positions]
    deadlines_s = [work.deadlines_s[at] for at in attempt.positions]
    try:
        threads = attempt.member.threads
        if threads is None:
            return await attempt.member.executor.run(work.key, inputs, deadlines_s)
        attempt.offer = threads.offer(work.key, inputs, deadlines_s)
        return await asyncio.wrap_future(attempt.offer.ran)
    except FirstlineError as error:
        return [error] * len(inputs)


def is_executors(error: FirstlineError) -> bool:
    """Whether an error is the executor's own, whatever it was asked."""
    return isinstance(error, CapacityError | LinkError) and not isinstance(error, DeadlineExceededError)


def may_do_better(error: FirstlineError) -> bool:
    """Whether another executor may answer what this one did not."""
    return is_executors(error) or isinstance(error, RuntimeFailure)
