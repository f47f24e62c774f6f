"""One batch: an executor is asked, another where it fails or is late, and the first answer of each request counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from firstline_core.errors import FirstlineError, RuntimeFailure
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.asking import Asking, Attempt, Ended, Work, may_do_better
from firstline_gateway.executors.dispatch.member import Member

# A batch is late once it has taken so many times what was expected, and no less than that longer.
_LATE, _LATE_S = 3.0, 0.02


class Race:
    """Of one batch.

    Args:
        asking: how, and whom.
        work: the batch.
    """

    def __init__(self, asking: Asking, work: Work) -> None:
        self._asking = asking
        self._clock = asking.clock
        self._work = work
        self._outcomes: dict[int, Outcome] = {}
        self._said: dict[int, FirstlineError] = {}
        # Who failed on a request that may be at fault itself, and what was said then.
        self._doubts: dict[int, tuple[Member, str]] = {}
        self._tried: list[Member] = []
        self._asked: dict[asyncio.Task[Ended], Attempt] = {}

    def begin(self, member: Member, positions: Sequence[int]) -> None:
        """Asks an executor for some of the requests."""
        attempt, asked = self._asking.begin(member, self._work, positions)
        self._tried.append(member)
        self._asked[asked] = attempt

    def begun(self, member: Member, ended: Ended, started_s: float) -> None:
        """An executor has been asked for all of it, and said this; what failed is asked of another one."""
        positions = range(len(self._work.inputs))
        running = member.begin(self._work.key, self._work.rows(positions), started_s)
        self._tried.append(member)
        self._take(Attempt(member, running, positions), ended)

    @property
    def is_over(self) -> bool:
        """Whether nobody is asked any more."""
        return not self._asked

    @property
    def outcomes(self) -> list[Outcome]:
        """Of each request, once it is over."""
        return [self._outcomes[at] if at in self._outcomes else self._said[at] for at in range(len(self._work.inputs))]

    async def end(self) -> list[Outcome]:
        """Returns once every request has an answer, or nobody is left to ask."""
        late = self._late_after()
        try:
            while self._asked:
                waited_for: set[asyncio.Future[object]] = {*self._asked, late}  # type: ignore[arg-type]
                ended, _ = await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._asked if task in ended]:
                    found = task.result()  # what is raised here ends the batch: the engine closes, or is at fault
                    self._take(self._asked.pop(task), found)
                if not self._open:
                    break
                if late in ended:
                    late = self._late_after() if self._also() else self._as_long_again()
        finally:
            late.cancel()
            for task, attempt in self._asked.items():
                self._asking.settle(attempt, task)
        return self.outcomes

    @property
    def _open(self) -> list[int]:
        return [at for at in range(len(self._work.inputs)) if at not in self._outcomes]

    def _take(self, attempt: Attempt, ended: Ended) -> None:
        """Takes what came back; what failed there goes to another executor, within what is left of its time."""
        self._asking.note(attempt, ended)
        for at, outcome in zip(attempt.positions, ended, strict=True):
            if at in self._outcomes:
                continue
            if isinstance(outcome, FirstlineError) and may_do_better(outcome):
                self._said[at] = outcome
                if isinstance(outcome, RuntimeFailure):
                    self._doubts.setdefault(at, (attempt.member, outcome.message))
            else:
                self._outcomes[at] = outcome
        doubts = dict(self._doubts.pop(at) for at in attempt.positions if at in self._doubts and at in self._outcomes)
        for member, message in doubts.items():  # another one has answered the same
            self._asking.doubt(member, self._work.key, message)
        now_s = self._clock.monotonic_s()
        elsewhere = {at for other in self._asked.values() for at in other.positions}
        left = [at for at in self._open if at not in elsewhere and not self._work.is_late(at, now_s)]
        if not left:
            return
        other = self._asking.other(self._work, left, self._tried)
        if other is not None:
            self._asking.repeated["retry"] += 1
            self.begin(other, left)

    def _also(self) -> bool:
        """Has another executor run what takes too long, if that one is expected to be done sooner."""
        now_s = self._clock.monotonic_s()
        left = [at for at in self._open if not self._work.is_late(at, now_s)]
        if not left or not self._asked:
            return False
        soonest_s = min(now_s - each.running.started_s for each in self._asked.values())
        other = self._asking.other(self._work, left, self._tried, soonest_s)
        if other is None:
            return False
        self._asking.repeated["late"] += 1
        self.begin(other, left)
        return True

    def _as_long_again(self) -> asyncio.Future[None]:
        """Nobody was expected to be done within what it has taken already; twice that may be another matter."""
        now_s = self._clock.monotonic_s()
        began_s = min((each.running.started_s for each in self._asked.values()), default=now_s)
        return asyncio.ensure_future(self._clock.sleep(max(_LATE_S, now_s - began_s)))

    def _late_after(self) -> asyncio.Future[None]:
        """Is done once what was asked last takes too long."""
        running = next(reversed(self._asked.values())).running
        expected_s = running.expected_s
        if expected_s is None:
            expected_s = running.wait_s + self._asking.presumed_s(running.key, running.rows)
        return asyncio.ensure_future(self._clock.sleep(max(_LATE * expected_s, expected_s + _LATE_S)))
