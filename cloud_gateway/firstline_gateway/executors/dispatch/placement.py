"""Where the next batch of a model completes first, and whether it should wait for that executor. Pure.

An executor that is idle and slow is worth it only if it completes a batch before the busy ones would complete the whole
backlog (the "slow server problem": Lin and Kumar, IEEE TAC 1984). It takes the rows after those that the busy ones
complete earlier. Requests that wait for a busy executor form a larger batch meanwhile. If several slots are free, they
share the backlog, provided that they complete it notably earlier together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from firstline_core.errors import EngineUnavailableError
from firstline_core.runtime.batch_times import GAIN
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.forecast import Candidate, CompletionForecast, Lane, earliest_completion
from firstline_gateway.executors.dispatch.member import Member

# An overdue batch is looked at again after so much of its expected time, and after at least so long.
_AGAIN_SHARE, _AGAIN_S = 0.25, 0.001
# More than any batch has.
_ANY_ROWS = 1 << 20
_RETRY_AFTER_S = 1.0


class ExecutorTimes(Struct, frozen=True):
    """Times of batches of one model on one executor; see `Times`.

    Args:
        member: the executor.
        key: the model.
        most_rows: of the next batch.
        overdue: factor of what is expected; see `Member.overdue_everywhere`.
    """

    member: Member
    key: ModelKey
    most_rows: int
    overdue: float = 1.0

    def seconds(self, rows: int) -> float:
        return (self.member.seconds(self.key, rows) or 0.0) * self.overdue

    def worthwhile_rows(self, max_rows: int) -> int:
        return min(max_rows, self.most_rows)


class IdleShare(NamedTuple):
    """A part of a backlog for an idle executor: `times.most_rows` rows, after `skip_rows` for the busy ones."""

    times: ExecutorTimes
    skip_rows: int


class Placement(Struct, frozen=True):
    """Where the next batch of a model runs.

    Args:
        times: of batches on the executor with the earliest predicted completion.
        is_free: whether it can start there now; else it waits for that executor.
        is_ahead: whether it is queued behind the batches that run there.
        retry_s: seconds after which to look again, if it waits and nothing happens meanwhile.
        idle: another executor, which completes a part of the backlog before the busy ones would.
    """

    times: ExecutorTimes
    is_free: bool = True
    is_ahead: bool = False
    retry_s: float = 0.0
    idle: IdleShare | None = None

    @property
    def member(self) -> Member:
        """The executor."""
        return self.times.member


def problem_with(members: Sequence[Member], key: ModelKey) -> str:
    """Returns why no executor can run a model, as sentences, or "" if one can."""
    problems = {member: member.problem_with(key) for member in members}
    if not all(problems.values()):
        return ""
    reasons = [
        f"{member.name}: {reason}" if member.name else reason
        for member, reason in problems.items()
        if key in member.models
    ]
    return " ".join(reasons) or f"No executor may run model '{key.name}'."


def away(members: Sequence[Member], key: ModelKey) -> EngineUnavailableError:
    """Returns the refusal of a model whose executors are all away."""
    return EngineUnavailableError(
        f"No executor that runs model '{key.name}' answers; send the request again later. {problem_with(members, key)}",
        retry_after_s=_RETRY_AFTER_S,
    )


class ExecutorSnapshot:
    """All executors at one moment, with the work that is reserved for batches that wait.

    Args:
        members: the executors.
        now_s: the moment, monotonic.
    """

    def __init__(self, members: Sequence[Member], now_s: float) -> None:
        self._members = members
        self._now_s = now_s
        self._reserved_s: defaultdict[Member, float] = defaultdict(float)  # of each slot
        self._rates: dict[ModelKey, dict[Member, float]] = {}
        self._completions: dict[ModelKey, CompletionForecast | None] = {}
        self._slots = {member: member.slots for member in members}

    def is_full(self, keys: Iterable[ModelKey]) -> bool:
        """Returns whether no batch of these models can start, however large it is, and none has to be refused."""
        return all(any(not member.problem_with(key) for member in self._members) for key in keys) and not any(
            len(member.running) < member.side_by_side or self._has_room(member, 0.0) for member in self._members
        )

    def place(
        self, key: ModelKey, rows: int, max_rows: int, least_rows: int = 1, *, may_share_slots: bool = False
    ) -> Placement | EngineUnavailableError:
        """Returns where the next batch of a model runs, or why it cannot run anywhere.

        Args:
            key: its model.
            rows: of the backlog.
            max_rows: of a batch.
            least_rows: of the batch: those of its first request.
            may_share_slots: whether another batch of the backlog may start at the same moment elsewhere.
        """
        available = [member for member in self._members if not member.problem_with(key)]
        if not available:
            return away(self._members, key)
        sizes = {member: max(least_rows, min(rows, member.worthwhile_rows(key, max_rows))) for member in available}
        best = earliest_completion(self._candidate(member, key, most) for member, most in sizes.items())
        assert best is not None  # noqa: S101 (at least one is available)
        most = sizes[best.executor]
        if self._is_free(best, key, is_full=rows >= best.executor.worthwhile_rows(key, max_rows)):
            if may_share_slots and best.run_s is not None and self._has_room(best.executor):
                most = self._even_rows(best, key, rows, (least_rows, most), sizes)
            return Placement(ExecutorTimes(best.executor, key, most), is_ahead=not self._has_room(best.executor))
        times = ExecutorTimes(best.executor, key, most)
        idle = [each for each in sizes if each is not best.executor and each.takes_now(key) and self._has_room(each)]
        soonest_s = min((self._candidate(each, key, least_rows).done_s for each in idle), default=math.inf)
        share = self._idle_share(best, times, sizes, idle, rows=rows, least_rows=least_rows)
        return Placement(times, is_free=False, retry_s=_look_again_s(best, soonest_s), idle=share)

    def _is_free(self, best: Candidate[Member], key: ModelKey, *, is_full: bool) -> bool:
        """Whether a batch can start there now. One as large as it can be gains nothing by waiting, and may go ahead."""
        if not best.trusted:  # an ejected executor runs a model that no other one runs, one batch at a time
            return best.executor.room_for_a_trial(key)
        return self._has_room(best.executor, best.run_s if is_full else None)

    def _idle_share(
        self,
        best: Candidate[Member],
        times: ExecutorTimes,
        sizes: Mapping[Member, int],
        idle: Sequence[Member],
        *,
        rows: int,
        least_rows: int,
    ) -> IdleShare | None:
        """Returns what an idle executor completes of a backlog before the busy ones would; that of the fastest one."""
        key, most = times.key, times.most_rows
        busy = [each for each in sizes if each.takes_now(key) and each not in idle]
        busy_rows_per_s = sum(each.rows_per_s(key, most, self._now_s) for each in busy)
        all_s = best.done_s + ((rows - most) / busy_rows_per_s if busy_rows_per_s else 0.0)
        found = []
        for member in idle:
            between = least_rows, sizes[member]
            largest = self._largest_batch(member, key, between, best.done_s)
            largest = largest or self._largest_batch(member, key, between, all_s)
            if largest is None:
                continue
            part, done_s = largest[0], largest[1].done_s
            skip = 0 if done_s <= best.done_s else most + math.ceil(busy_rows_per_s * (done_s - best.done_s))
            found.append((done_s / part, member.name, IdleShare(ExecutorTimes(member, key, part), min(skip, rows - 1))))
        return min(found, key=lambda each: each[:2])[2] if found else None

    def _even_rows(
        self, best: Candidate[Member], key: ModelKey, rows: int, between: tuple[int, int], among: Iterable[Member]
    ) -> int:
        """Returns the rows with which the slots that are free complete the backlog together.

        The most rows, if that is not notably earlier.
        """
        least, most = between
        slots = {
            each: sum(wait_s <= 0 for wait_s in each.free_for_s(key, self._now_s))
            for each in among
            if each is best.executor or each.takes_now(key)
        }
        rates = {each: each.rows_per_s(key, rows, self._now_s) / each.side_by_side for each in slots}
        all_rows_per_s = sum(rates[each] * count for each, count in slots.items())
        even = max(least, math.ceil(rows * rates[best.executor] / all_rows_per_s - 1e-9)) if all_rows_per_s else most
        if even >= most:
            return most
        evenly_s, at_most_s = (self._candidate(best.executor, key, each).done_s for each in (even, most))
        return even if GAIN * evenly_s <= at_most_s else most

    def reserve(self, key: ModelKey, placement: Placement, rows: int) -> None:
        """Reserves the busy executors for a backlog that waits for them: other models come after it there."""
        busy = [
            each
            for each in self._members
            if each.takes_now(key) and not (each is not placement.member and self._has_room(each))
        ]
        if placement.member not in busy and not placement.member.runs(key):  # a trial waits for its slot
            busy.append(placement.member)
        rows_per_s = sum(each.rows_per_s(key, placement.times.most_rows, self._now_s) for each in busy)
        for member in busy:
            self._reserved_s[member] += rows / rows_per_s if rows_per_s else 0.0

    # For admission.

    def completion(self, key: ModelKey, max_rows: int) -> CompletionForecast | None:
        """Returns when the slots that run a model complete its work, or None if no executor runs it."""
        if key not in self._completions:
            lanes = []
            for member in self._measured_members(key):
                times = ExecutorTimes(
                    member, key, member.worthwhile_rows(key, _ANY_ROWS), member.overdue_everywhere(self._now_s)
                )
                lanes += [Lane(wait_s, times) for wait_s in member.free_for_s(key, self._now_s)]
            self._completions[key] = CompletionForecast(lanes, max_rows) if lanes else None
        return self._completions[key]

    def is_known(self, key: ModelKey) -> bool:
        """Returns whether the batch times of a model are known on any of its executors."""
        return any(member.seconds(key, 1) is not None for member in self._trusted_members(key))

    def alone_s(self, key: ModelKey, rows: int) -> float:
        """Returns the least seconds that a batch of a model takes on an idle executor; 0 if nothing is known."""
        return min((member.seconds(key, rows) or 0.0 for member in self._measured_members(key)), default=0.0)

    def part(self, key: ModelKey, other: ModelKey) -> float:
        """Returns the part of another model's work that goes to the executors of a model."""
        if other == key:
            return 1.0
        if other not in self._rates:
            self._rates[other] = self._rates_of(other)
        rates = self._rates[other]
        everywhere, mine = sum(rates.values()), self._trusted_members(key)
        return sum(rate for member, rate in rates.items() if member in mine) / everywhere if everywhere else 1.0

    def _rates_of(self, key: ModelKey) -> dict[Member, float]:
        members = self._trusted_members(key)
        rates = {member: member.rows_per_s(key, _ANY_ROWS, self._now_s) for member in members}
        return rates if any(rates.values()) else {member: float(self._slots[member]) for member in members}

    def _trusted_members(self, key: ModelKey) -> list[Member]:
        """Returns the executors that run a model and are not ejected; the ejected ones if there is no other."""
        available = [member for member in self._members if not member.problem_with(key)]
        return [member for member in available if member.models[key].health.trusted] or available

    def _measured_members(self, key: ModelKey) -> list[Member]:
        """Returns those of them where the model was measured; all if it was measured on none."""
        best = self._trusted_members(key)
        return [member for member in best if member.seconds(key, 1) is not None] or best

    def _has_room(self, member: Member, ahead_s: float | None = None) -> bool:
        return member.room(self._slots[member], None if member in self._reserved_s else ahead_s)

    def _candidate(self, member: Member, key: ModelKey, rows: int) -> Candidate[Member]:
        reserved_s = [self._reserved_s[member]] * member.side_by_side if member in self._reserved_s else ()
        return member.candidate(key, rows, self._now_s, reserved_s)

    def _largest_batch(
        self, member: Member, key: ModelKey, between: tuple[int, int], within_s: float
    ) -> tuple[int, Candidate[Member]] | None:
        """Returns the largest batch that an executor completes within the time.

        A size that was never tried is taken to gain nothing by being a batch. So two rows are tried where one would be
        the answer, or one by one would be all that the executor ever gets.
        """
        for fewer in _batch_sizes(*between):
            found = self._candidate(member, key, fewer)
            if found.done_s > within_s:
                continue
            if fewer == 1 < between[1] and not member.models[key].forecast.has_tried(2):
                return 2, found
            return fewer, found
        return None


def _look_again_s(best: Candidate[Member], soonest_s: float) -> float:
    """Returns when an idle executor would complete earlier, should the batch that runs on the best one never end."""
    if best.run_s is None:
        return math.inf
    return best.wait_s + max(_AGAIN_S, soonest_s - best.done_s, _AGAIN_SHARE * best.run_s)


def _batch_sizes(least: int, most: int) -> Iterator[int]:
    """Yields the most, the powers of two below, and the least."""
    yield most
    size = 1 << max(0, most - 1).bit_length() >> 1
    while size > least:
        yield size
        size >>= 1
    if least < most:
        yield least
