"""Where the next batch is done first, and whether it had best wait for that: bound late, while it can still grow.

Whoever is free and slow is worth it only where it is done before those who are busy would be: the "slow server
problem" (Lin and Kumar, IEEE TAC 1984: a slow server is used from a length of the queue on). What waits grows together
meanwhile, which for models that gain by batches is worth more than to begin at once; so whoever is free and slow gets
as many rows of it as it has done by the time at which the busy one would be done with all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from firstline_core.types import Tensor
from firstline_gateway.executors.base import Lane, ModelKey, NoSeat, Outcome
from firstline_gateway.executors.base import Seat as AnySeat
from firstline_gateway.executors.dispatch import nowhere
from firstline_gateway.executors.dispatch.choice import Candidate, choose
from firstline_gateway.executors.dispatch.member import Member

Run = Callable[[Member, ModelKey, Sequence[Tensor], Sequence[float | None]], Awaitable[list[Outcome]]]

# What is overdue is looked at again after so much of what it was to take, and no sooner than that.
_AGAIN_SHARE, _AGAIN_S = 0.25, 0.001
# More than any batch has.
_ANY_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class SeatTimes:
    """See `base.Times`; of one model on one executor.

    Args:
        most_rows: that it is to be given now.
        overdue: see `Member.overdue`.
    """

    member: Member
    key: ModelKey
    most_rows: int
    overdue: float = 1.0

    def seconds(self, rows: int) -> float:
        return (self.member.seconds(self.key, rows) or 0.0) * self.overdue

    def worthwhile_rows(self, max_rows: int) -> int:
        return min(max_rows, self.most_rows)


@dataclass(frozen=True, slots=True)
class Seat:
    """See `base.Seat`."""

    member: Member
    key: ModelKey
    is_free: bool
    times: SeatTimes
    again_s: float
    has_others: bool
    _run: Run

    def run(self, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> Awaitable[list[Outcome]]:
        return self._run(self.member, self.key, inputs, deadlines_s)


class Look:
    """See `base.Look`.

    Args:
        members: all of them.
        now_s: the present.
        run: a batch on one of them.
    """

    def __init__(self, members: Sequence[Member], now_s: float, run: Run) -> None:
        self._members = members
        self._now_s = now_s
        self._run = run
        self._held_s: defaultdict[Member, list[float]] = defaultdict(list)
        self._rates: dict[ModelKey, dict[Member, float]] = {}

    @property
    def is_full(self) -> bool:
        return not any(member.room(ahead=True) or self._is_last(member) for member in self._members)

    def is_bounded(self, key: ModelKey) -> bool:
        return all(member.has_budget or member.trouble(key) for member in self._members)

    def seat(self, key: ModelKey, rows: int, max_rows: int, least_rows: int = 1) -> Seat | NoSeat:
        there = [member for member in self._members if not member.trouble(key)]
        if not there:
            return nowhere.away(self._members, key)
        sizes: dict[Member, int] = {}
        candidates = []
        for member in there:
            most = max(least_rows, min(rows, member.worthwhile_rows(key, max_rows)))
            if (found := self._largest(member, key, (least_rows, most))) is not None:
                sizes[member], candidate = found
                candidates.append(candidate)
        best = choose(candidates)
        if best is None:
            return nowhere.over_budget([self._candidate(member, key, least_rows) for member in there], key, self._now_s)
        most = sizes[best.name]
        # What is as large as it can be gains nothing by waiting here; it may as well be on its way.
        is_full = rows >= best.name.worthwhile_rows(key, max_rows)
        # Whoever is left alone is asked where nobody else is there, once at a time.
        if best.name.room(len(self._held_s[best.name]), ahead=is_full) if best.trusted else not best.name.running:
            return Seat(best.name, key, True, SeatTimes(best.name, key, most), 0.0, False, self._run)
        others = [member for member in sizes if member is not best.name and member.room(len(self._held_s[member]))]
        instead = [each for member in others if (each := self._largest(member, key, (least_rows, sizes[member]), best))]
        if instead:
            fewer, chosen = min(instead, key=lambda each: each[1].done_s / each[0])
            return Seat(chosen.name, key, True, SeatTimes(chosen.name, key, fewer), 0.0, False, self._run)
        soonest_s = min((self._candidate(member, key, least_rows).done_s for member in others), default=math.inf)
        times = SeatTimes(best.name, key, most)
        return Seat(best.name, key, False, times, _again_s(best, soonest_s), bool(others), self._run)

    def lanes(self, key: ModelKey) -> list[Lane]:
        there = [member for member in self._members if not member.trouble(key)]
        well = [member for member in there if member.standing.trusted] or there
        known = [member for member in well if member.seconds(key, 1) is not None] or well
        lanes = []
        for member in known:
            times = SeatTimes(member, key, member.worthwhile_rows(key, _ANY_ROWS), member.overdue(self._now_s))
            lanes += [Lane(wait_s, times) for wait_s in member.free_s(self._now_s)]
        return lanes

    def part(self, key: ModelKey, other: ModelKey) -> float:
        if other == key:
            return 1.0
        rates = self._rates.get(other)
        if rates is None:
            rates = self._rates[other] = self._rates_of(other)
        everywhere = sum(rates.values())
        return (
            sum(rate for member, rate in rates.items() if not member.trouble(key)) / everywhere if everywhere else 1.0
        )

    def _rates_of(self, key: ModelKey) -> dict[Member, float]:
        """What each executor does of a model's work in a while; where nobody knows, by slots."""
        there = [member for member in self._members if not member.trouble(key)]
        rates = {member: member.rows_per_s(key, _ANY_ROWS) / member.overdue(self._now_s) for member in there}
        return rates if any(rates.values()) else {member: float(member.slots) for member in there}

    def hold(self, key: ModelKey, seat: AnySeat, rows: int) -> None:
        assert isinstance(seat, Seat)  # noqa: S101 (it is from `seat`)
        self._held_s[seat.member].append(seat.member.seconds(key, rows) or 0.0)

    def hold_all(self, key: ModelKey, rows: int, max_rows: int) -> None:
        there = [member for member in self._members if not member.trouble(key)]
        rate_per_s = sum(member.rows_per_s(key, min(rows, max_rows)) for member in there)
        if not rate_per_s:
            return
        for member in there:  # each has its part in the proportion of its speed, so that all end together
            self._held_s[member] += [rows / rate_per_s] * member.side_by_side

    def _is_last(self, member: Member) -> bool:
        """Whether it is left alone, and asked all the same, for a model that nobody else who is well runs."""
        if member.standing.trusted or member.running:
            return False
        well = [other for other in self._members if other.standing.trusted]
        return any(not member.trouble(key) and all(other.trouble(key) for other in well) for key in member.keys)

    def _candidate(self, member: Member, key: ModelKey, rows: int) -> Candidate[Member]:
        return member.candidate(key, rows, self._now_s, self._held_s[member])

    def _largest(
        self, member: Member, key: ModelKey, between: tuple[int, int], than: Candidate[Member] | None = None
    ) -> tuple[int, Candidate[Member]] | None:
        """The most rows, and what they take, that are within its budgets there, and done no later than another one."""
        for fewer in _sizes(*between):
            found = self._candidate(member, key, fewer)
            if not found.fits:
                continue
            if than is None or (found.trusted >= than.trusted and found.done_s <= than.done_s):
                return fewer, found
        return None


def _again_s(best: Candidate[Member], soonest_s: float) -> float:
    """When another one would be done sooner after all, should what the best has under way never end.

    Endless where nobody knows what it takes: the end of what runs is then what is waited for.
    """
    if best.run_s is None:
        return math.inf
    return best.wait_s + max(_AGAIN_S, soonest_s - best.done_s, _AGAIN_SHARE * best.run_s)


def _sizes(least: int, most: int) -> Iterator[int]:
    """The most, each power of two in between, and the least."""
    yield most
    size = 1 << max(0, most - 1).bit_length() >> 1
    while size > least:
        yield size
        size >>= 1
    if least < most:
        yield least
