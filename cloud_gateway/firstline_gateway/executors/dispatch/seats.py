"""Where the next batch is done first, and whether it had best wait for that: bound late, while it can still grow.

Whoever is free and slow is worth it only where it is done before those who are busy would be: the "slow server
problem" (Lin and Kumar, IEEE TAC 1984: a slow server is used from a length of the queue on). What waits grows together
meanwhile, which for models that gain by batches is worth more than to begin at once; so whoever is free and slow gets
as many rows of it as it has done by the time at which the busy one would be done with all. Likewise whoever is free and
quick leaves to another one, free or nearly so, what both have done sooner than one of them alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firstline_core.runtime.batch_times import GAIN
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch import nowhere
from firstline_gateway.executors.dispatch.choice import Candidate, choose
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.seating import Lane, NoSeat
from firstline_gateway.executors.seating import Seat as AnySeat

Run = Callable[[Member, ModelKey, Sequence[Tensor], Sequence[float | None]], Awaitable[list[Outcome]]]

# What is overdue is looked at again after so much of what it was to take, and no sooner than that.
_AGAIN_SHARE, _AGAIN_S = 0.25, 0.001
# More than any batch has.
_ANY_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class SeatTimes:
    """See `seating.Times`; of one model on one executor.

    Args:
        most_rows: that it is to be given now.
        overdue: see `Member.overdue_everywhere`.
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
    """See `seating.Seat`.

    Args:
        busy: executors that will do it as well, once what they have is done.
        others_s: seconds that have to be held, all in all, until one that is free is worth it.
        grows: whether it could begin if the batch were as large as it can be.
    """

    member: Member
    key: ModelKey
    is_free: bool
    times: SeatTimes
    _run: Run
    again_s: float = 0.0
    busy: Sequence[Member] = ()
    others_s: float = math.inf
    grows: bool = False

    def run(self, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> Awaitable[list[Outcome]]:
        return self._run(self.member, self.key, inputs, deadlines_s)


class _Wait(NamedTuple):
    """Requests of a model wait for executors that are busy.

    Args:
        best: that the first of them wait for.
        until_s: seconds held there from which on one that is free may be worth it.
        row_s: seconds that a row takes, where all of them work on it.
        batches: of each, the part of one of its batches that it does of a row.
        grows: see `Seat`.
    """

    best: Member
    until_s: float
    row_s: float
    batches: Mapping[Member, float]
    grows: bool


class Look:
    """See `seating.Look`.

    Args:
        members: all of them.
        now_s: the present.
        run: a batch on one of them.
    """

    def __init__(self, members: Sequence[Member], now_s: float, run: Run) -> None:
        self._members = members
        self._now_s = now_s
        self._run = run
        self._held_s: defaultdict[Member, float] = defaultdict(float)  # of each slot
        self._held: defaultdict[Member, float] = defaultdict(float)  # batches
        self._waits: dict[ModelKey, _Wait] = {}
        self._rates: dict[ModelKey, dict[Member, float]] = {}

    @property
    def is_full(self) -> bool:
        return not any(member.room(ahead=True) or self._is_last(member) for member in self._members)

    def is_bounded(self, key: ModelKey) -> bool:
        return all(member.has_budget or member.trouble(key) for member in self._members)

    def seat(
        self, key: ModelKey, rows: int, max_rows: int, least_rows: int = 1, *, shares: bool = False
    ) -> Seat | NoSeat:
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
            now = [self._candidate(member, key, least_rows) for member in there]
            return nowhere.over_budget(self._members, now, key, least_rows, self._now_s)
        most = sizes[best.name]
        # What is as large as it can be gains nothing by waiting here; it may as well be on its way.
        is_full = rows >= best.name.worthwhile_rows(key, max_rows)
        # Whoever is left alone is asked where nobody else is there, one batch of the model at a time.
        held = math.ceil(self._held[best.name])
        if self._has_room(best.name, ahead=is_full) if best.trusted else best.name.room_for_a_trial(key, held):
            if (
                shares
                and best.trusted
                and best.run_s is not None
                and least_rows < rows == most
                and self._has_room(best.name)
            ):
                most = self._part(best, key, (least_rows, rows), sizes)
            return Seat(best.name, key, True, SeatTimes(best.name, key, most), self._run)
        others = [
            member for member in sizes if member is not best.name and member.takes_now(key) and self._has_room(member)
        ]
        instead = [each for member in others if (each := self._largest(member, key, (least_rows, sizes[member]), best))]
        if instead:
            fewer, chosen = min(instead, key=lambda each: each[1].done_s / each[0])
            return Seat(chosen.name, key, True, SeatTimes(chosen.name, key, fewer), self._run)
        soonest_s = min((self._candidate(member, key, least_rows).done_s for member in others), default=math.inf)
        return Seat(
            member=best.name,
            key=key,
            is_free=False,
            times=SeatTimes(best.name, key, most),
            _run=self._run,
            again_s=_again_s(best, soonest_s),
            # Whoever is left alone with a model, or over its budget for it, does nothing of its backlog.
            busy=[member for member in sizes if member.takes_now(key) and member not in others],
            others_s=soonest_s - best.done_s if others else math.inf,
            grows=not is_full and best.trusted and self._has_room(best.name, ahead=True),
        )

    def _part(self, best: Candidate[Member], key: ModelKey, between: tuple[int, int], among: Iterable[Member]) -> int:
        """Of all rows those with which the best ends together with another one that takes the rest.

        All of them, where both together are not done notably sooner. Of several others the quickest counts, with all
        the rest.
        """
        least, most = between
        found, done_s = most, best.done_s / GAIN
        for other in among:
            if other is best.name or not other.takes_now(key):
                continue
            fewest, enough = least, found
            while fewest < enough:
                part = (fewest + enough) // 2
                rest, mine = self._candidate(other, key, most - part), self._candidate(best.name, key, part)
                if rest.fits and rest.done_s <= mine.done_s:
                    enough = part
                else:
                    fewest = part + 1
            if enough < found and self._candidate(best.name, key, enough).done_s <= done_s:
                found = enough
        return found

    def lanes(self, key: ModelKey) -> list[Lane]:
        lanes = []
        for member in self._known_of(key):
            times = SeatTimes(
                member, key, member.worthwhile_rows(key, _ANY_ROWS), member.overdue_everywhere(self._now_s)
            )
            lanes += [Lane(wait_s, times) for wait_s in member.free_for_s(key, self._now_s)]
        return lanes

    def alone_s(self, key: ModelKey, rows: int) -> float:
        return min((member.seconds(key, rows) or 0.0 for member in self._known_of(key)), default=0.0)

    def part(self, key: ModelKey, other: ModelKey) -> float:
        if other == key:
            return 1.0
        rates = self._rates.get(other)
        if rates is None:
            rates = self._rates[other] = self._rates_of(other)
        everywhere = sum(rates.values())
        mine = self._best_of(key)
        return sum(rate for member, rate in rates.items() if member in mine) / everywhere if everywhere else 1.0

    def _rates_of(self, key: ModelKey) -> dict[Member, float]:
        """What each executor does of a model's work in a while; where nobody knows, by slots."""
        there = self._best_of(key)
        rates = {member: self._rows_per_s(member, key, _ANY_ROWS) for member in there}
        return rates if any(rates.values()) else {member: float(member.slots) for member in there}

    def hold(self, key: ModelKey, seat: AnySeat, rows: int) -> None:
        assert isinstance(seat, Seat)  # noqa: S101 (it is from `seat`)
        # Of what waits for the trial of its own model to end, no slot is kept from others meanwhile.
        if seat.member.takes_now(key) or not seat.member.runs(key):
            self._held_s[seat.member] += (seat.member.seconds(key, rows) or 0.0) / seat.member.side_by_side
            self._held[seat.member] += 1
        self._waits[key] = self._wait(seat)

    def waits(self, key: ModelKey, rows: int, of_model: int, max_rows: int, *, comes: bool = False) -> bool:
        found = self._waits.get(key)
        if found is None:
            seat = self.seat(key, of_model, max_rows, rows)
            if isinstance(seat, NoSeat) or seat.is_free:
                return False
            found = self._waits[key] = self._wait(seat)
        if self._held_s[found.best] >= found.until_s or (comes and found.grows):
            return False
        for member, batches in found.batches.items():  # so that all end together
            self._held_s[member] += rows * found.row_s
            self._held[member] += rows * batches
        return True

    def _wait(self, seat: Seat) -> _Wait:
        key, most_rows = seat.key, seat.times.most_rows
        rates = {member: rate for member in seat.busy if (rate := self._rows_per_s(member, key, most_rows))}
        row_s = 1 / sum(rates.values()) if rates else 0.0
        return _Wait(
            best=seat.member,
            # The next batch is held up to its end.
            until_s=self._held_s[seat.member] + seat.others_s - most_rows * row_s,
            row_s=row_s,
            batches={member: rate * row_s / member.worthwhile_rows(key, most_rows) for member, rate in rates.items()},
            grows=seat.grows,
        )

    def _rows_per_s(self, member: Member, key: ModelKey, rows: int) -> float:
        return member.rows_per_s(key, rows) / member.overdue(self._now_s)

    def _has_room(self, member: Member, *, ahead: bool = False) -> bool:
        return member.room(math.ceil(self._held[member]), ahead=ahead)

    def _is_last(self, member: Member) -> bool:
        """Whether it is asked for a model that it is left alone with, because nobody runs that and is well."""
        return any(
            member.room_for_a_trial(key)
            and not member.trouble(key)
            and not any(other.takes_now(key) for other in self._members)
            for key in member.keys
        )

    def _best_of(self, key: ModelKey) -> list[Member]:
        """Who answers a model's batches; where nobody does, who runs it all the same."""
        there = [member for member in self._members if not member.trouble(key)]
        return [member for member in there if member.standing(key).trusted] or there

    def _known_of(self, key: ModelKey) -> list[Member]:
        """Of whoever answers a model's batches those that it was measured on; all where it was on none."""
        there = self._best_of(key)
        return [member for member in there if member.seconds(key, 1) is not None] or there

    def _candidate(self, member: Member, key: ModelKey, rows: int) -> Candidate[Member]:
        held_s = [self._held_s[member]] * member.side_by_side if self._held[member] else ()
        return member.candidate(key, rows, self._now_s, held_s)

    def _largest(
        self, member: Member, key: ModelKey, between: tuple[int, int], than: Candidate[Member] | None = None
    ) -> tuple[int, Candidate[Member]] | None:
        """The most rows, and what they take, that are within its budgets there, and done no later than another one.

        Two where that is one, and nobody knows what two take: what was never tried is taken to gain nothing by being a
        batch, so that one by one would be all that it ever gets.
        """
        for fewer in _sizes(*between):
            found = self._candidate(member, key, fewer)
            if not found.fits:
                continue
            if than is None or (found.trusted >= than.trusted and found.done_s <= than.done_s):
                if fewer == 1 < between[1] and not member.has_tried(key, 2):
                    two = self._candidate(member, key, 2)
                    return (2, two) if two.fits else (1, found)
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
