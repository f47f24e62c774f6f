"""Where the next batch of a model completes first, whether it waits for that, and when waiting work completes. Pure.

The terms, each of which uses those before it:

- member: an executor, or one server of it (`member.py`)
- slot: a place for one running batch; a member has one or more
- `Times`: the expected seconds of a model's batches, by rows; each member has its own
- lane (`Lane`): a slot with the seconds until it is free, and the `Times` there
- work: waiting batches, as the seconds that the fastest lane takes for them; other lanes usually do less in 1 s
- `Placement`: the member for the next batch, and the limit of its rows, of which `PoolSnapshot.place` has three

A member that is idle and slow is worth it only if it completes a batch before the busy ones would complete the whole
backlog (the "slow server problem": Lin and Kumar, IEEE TAC 1984). It takes the requests that are due last. Requests
that wait for a busy member form a larger batch meanwhile. If several slots are free, they share the backlog, provided
that they complete it notably earlier together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from firstline_core.errors import EngineUnavailableError
from firstline_core.runtime.batch_times import GAIN, BatchTimes
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.member import Candidate, Member, earliest_completion

# More than any batch has.
_ANY_ROWS = 1 << 20
_RETRY_AFTER_S = 1.0


class Times(Protocol):
    """How long batches of a model take."""

    def seconds(self, rows: int) -> float:
        """Returns the expected seconds of a batch; 0 if nothing is known."""

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch that is worth it, up to `max_rows`."""


class Lane(NamedTuple):
    """A slot of a member that runs a model.

    Args:
        wait_s: seconds until it is free.
        times: of batches there.
    """

    wait_s: float
    times: Times


class BatchForecast(NamedTuple):
    """The completion of batches of one size, on slots side by side of which one may be faster than another.

    Each batch goes where it completes first. So a slow slot takes part only if the fast ones, with the work that waits
    for them, would not complete earlier. A slot that hangs takes no part until its batch should have ended. The number
    of batches that have ended by some time follows without placing them one by one.

    Work is counted in seconds of the fastest lane; see `CompletionForecast.times`. Example: the fastest lane takes
    0.25 s for a batch, so ten batches are 2.5 s of work. A lane that takes 1 s for a batch does 0.25 s of work in a
    second:

    >>> forecast = BatchForecast(seconds=0.25, lanes=[(0.25, 1.0), (1.0, 0.25)])  # both lanes are free now
    >>> forecast.done(0.0)  # no work before it: the fast lane runs the batch at once
    (0.25, 1.0)
    >>> forecast.done(0.5)  # after two batches: the fast lane runs all three, and does 1 s of work in a second
    (0.75, 1.0)
    >>> forecast.done(1.0)  # after four batches: the fast lane has completed four by then, and the slow one the fifth
    (1.0, 1.25)
    >>> forecast.done(1.625)  # after six and a half: six on the fast lane and one and a half on the slow one, with it
    (1.5, 1.25)
    >>> forecast.wait_s(1.625)  # the time until it starts, if it runs on the fast lane
    1.25

    Args:
        seconds: of a batch on the fastest lane.
        lanes: (seconds until it completes a batch that starts there next, work that it does in a second) of each lane,
            in this order.
    """

    seconds: float
    lanes: Sequence[tuple[float, float]]

    @property
    def first_s(self) -> float:
        """When a batch completes that is next."""
        return self.lanes[0][0]

    def done(self, work_s: float) -> tuple[float, float]:
        """Returns when a batch completes that comes after `work_s` of work, and the work done in a second by then."""
        at_s, speed = self.lanes[0]
        for ends_s, lane_speed in self.lanes[1:]:
            meanwhile_s = speed * (ends_s - at_s)
            if meanwhile_s >= work_s:
                break
            # By then that lane has done one whole batch; from then on it does its part of every second.
            work_s = max(0.0, work_s - meanwhile_s - self.seconds)
            at_s, speed = ends_s, speed + lane_speed
        return at_s + work_s / speed, speed

    def wait_s(self, work_s: float) -> float:
        """Returns how long a batch waits that comes after `work_s` of work and runs on the fastest lane."""
        return max(0.0, self.done(work_s)[0] - self.seconds)


class CompletionForecast:
    """The completion of one model's requests.

    Args:
        lanes: the slots that run it, at least one.
        max_rows: of a batch.

    Attributes:
        lanes: as given.
        times: those of the fastest lane, the one with most rows in a second; it does 1 s of work in 1 s.
    """

    def __init__(self, lanes: Sequence[Lane], max_rows: int) -> None:
        def rows_per_s(lane: Lane) -> float:
            rows = lane.times.worthwhile_rows(max_rows)
            seconds = lane.times.seconds(rows)
            return rows / seconds if seconds else 0.0

        self.lanes = lanes
        of_one_member = all(lane.times is lanes[0].times for lane in lanes)
        self.times = lanes[0].times if of_one_member else max(lanes, key=rows_per_s).times

    def of(self, rows: int) -> BatchForecast:
        """Returns the forecast of batches of `rows` rows."""
        batch_s = self.times.seconds(rows)
        lanes = []
        for wait_s, times in self.lanes:
            run_s = batch_s if times is self.times else times.seconds(rows)
            lanes.append((wait_s + run_s, batch_s / run_s if run_s else 1.0))
        return BatchForecast(batch_s, sorted(lanes))


class Placement(Struct, frozen=True):
    """Where the next batch of a model runs, and the `Times` of batches there.

    Args:
        member: the member with the earliest predicted completion.
        key: the model.
        most_rows: of the batch: one of the three limits in `PoolSnapshot.place`.
        is_free: whether it can start there now; else it waits for that member.
        idle: another member, which completes the last requests of the backlog before the busy ones would.
    """

    member: Member
    key: ModelKey
    most_rows: int
    is_free: bool = True
    idle: Placement | None = None

    def seconds(self, rows: int) -> float:
        """Returns the expected seconds of a batch on the member; 0 if nothing is known."""
        return self.member.seconds(self.key, rows) or 0.0

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the most rows of the batch, but at most `max_rows`."""
        return min(max_rows, self.most_rows)


def problem_with(members: Sequence[Member], key: ModelKey) -> str:
    """Returns why no member can run a model, as sentences, or "" if one can."""
    problems = {member: member.problem_with(key) for member in members}
    if not all(problems.values()):
        return ""
    named = {member: f"{member.name}: " if member.name else "" for member in members if key in member.models}
    reasons = [name + problems[member] for member, name in named.items()]
    return " ".join(reasons) or f"No executor may run model '{key.name}'."


class PoolSnapshot:
    """All members at one moment, with the work that is reserved for batches that wait.

    Args:
        members: of the pool.
        now_s: the moment, monotonic.
    """

    def __init__(self, members: Sequence[Member], now_s: float) -> None:
        self._members = members
        self._now_s = now_s
        self._reserved_s: dict[Member, float] = {}  # of each slot
        self._completions: dict[ModelKey, CompletionForecast] = {}

    def is_full(self, keys: Iterable[ModelKey]) -> bool:
        """Returns whether no batch of these models can start, however large it is, and none has to be refused."""
        return not any(member.has_room(is_full=True) for member in self._members) and all(map(self._available, keys))

    def place(
        self, key: ModelKey, rows: int, max_rows: int, least_rows: int = 1, *, may_share_slots: bool = False
    ) -> Placement | EngineUnavailableError:
        """Returns where the next batch of a model runs, or why it cannot run anywhere.

        The rows of the batch have one of three limits:

            largest   the rows that gain by running together there (`Member.worthwhile_rows`), or all that wait if they
                      are fewer; at least those of the first request
            even      the share of one of several free slots, if they complete the backlog notably earlier together
            in time   what an idle member completes before the busy ones complete their next batch, or the backlog

        Args:
            key: its model.
            rows: of the backlog.
            max_rows: of a batch.
            least_rows: of the batch: those of its first request.
            may_share_slots: whether another batch of the backlog may start at the same moment elsewhere.
        """
        available = self._available(key)
        if not available:
            return EngineUnavailableError(
                f"No executor that runs model '{key.name}' answers; retry after the time given with this error. "
                f"{problem_with(self._members, key)}",
                retry_after_s=_RETRY_AFTER_S,
            )
        at_most = min(rows, max_rows)
        largest = {member: max(least_rows, member.worthwhile_rows(key, at_most)) for member in available}
        best = earliest_completion(self._candidate(member, key, each) for member, each in largest.items())
        assert best is not None  # noqa: S101 (at least one is available)
        member, most_rows = best.member, largest[best.member]
        has_room = member.has_room()
        if not has_room and best.run_s is not None and member not in self._reserved_s:
            has_room = member.has_room(is_full=rows >= member.worthwhile_rows(key, max_rows))
        if not has_room:
            idle = self._place_idle(best, key, rows, least_rows, largest)
            return Placement(member, key, most_rows, is_free=False, idle=idle)
        if may_share_slots and best.run_s is not None and member.has_room():
            most_rows = self._even_rows(member, key, rows, least_rows, largest)
        return Placement(member, key, most_rows)

    def _even_rows(self, best: Member, key: ModelKey, rows: int, least: int, largest: Mapping[Member, int]) -> int:
        """Returns the rows of a batch with which all free slots complete the backlog at the same time.

        Returns the largest batch instead if sharing the backlog would not complete it notably earlier. Example: 8 rows
        wait, two equal slots are free, and a batch of 8 rows takes 20 ms. If one of 4 rows takes 12 ms, each slot gets
        4 rows. If it takes 19.5 ms, one slot gets all 8 rows: the gain is below `GAIN`.
        """
        largest_rows, all_rows_per_s = largest[best], 0.0
        for each in largest:
            if each is best or each.takes_now(key):
                free = each.until_free_s(self._now_s)
                all_rows_per_s += each.rows_per_s(key, rows) * free.count(0.0) / len(free)
        mine_per_s = best.rows_per_s(key, rows) / best.side_by_side
        even = max(least, math.ceil(rows * mine_per_s / all_rows_per_s - 1e-9)) if all_rows_per_s else largest_rows
        if even >= largest_rows:
            return largest_rows
        even_s, largest_s = (self._candidate(best, key, each).done_s for each in (even, largest_rows))
        return even if GAIN * even_s <= largest_s else largest_rows

    def _place_idle(
        self, best: Candidate[Member], key: ModelKey, rows: int, least_rows: int, largest: Mapping[Member, int]
    ) -> Placement | None:
        """Returns the idle member that completes most rows in a second, and a batch for it; None if none is worth it.

        The batch is the largest that the idle member completes before the busy ones complete their next batch. If
        there is no such batch, it is the largest that completes before they would complete the whole backlog.

        Example: 320 rows wait. The busy member is free in 0.1 s and takes 0.1 s for its largest batch of 32 rows. It
        completes the next one after 0.2 s, and the last one after 1.1 s. An idle member that takes 0.1 s and 0.02 s
        for each row gets 4 rows (0.18 s). One that takes five times as long completes no batch within 0.2 s, and gets
        4 rows because of the 1.1 s (0.9 s). One that takes ten times as long gets none (1.2 s for one row).
        """
        others = [each for each in largest if each is not best.member and each.takes_now(key)]
        idle = [each for each in others if each.has_room()]
        if not idle:
            return None
        busy = [best.member, *(each for each in others if each not in idle)]
        busy_rows = largest[best.member]
        batches = self._completion(busy, key, busy_rows).of(busy_rows)
        all_s = batches.done((rows - busy_rows) / busy_rows * batches.seconds)[0]
        found = []
        for member in idle:
            before_next = self._rows_in_time(member, key, least_rows, largest[member], best.done_s)
            in_time = before_next or self._rows_in_time(member, key, least_rows, largest[member], all_s)
            if in_time:
                done_s = self._candidate(member, key, in_time).done_s
                found.append((done_s / in_time, member.name, Placement(member, key, in_time)))
        return min(found, key=lambda each: each[:2])[2] if found else None

    def _rows_in_time(self, member: Member, key: ModelKey, least: int, largest_rows: int, within_s: float) -> int:
        """Returns the rows of the largest batch that a member completes within the time; 0 if there is none.

        For a size that was never tried, no gain by batching is assumed. So two rows are tried where the answer would be
        one; otherwise the member would always get single rows.
        """
        size = largest_rows
        while self._candidate(member, key, size).done_s > within_s:
            if size <= least:
                return 0
            size = max(least, size // 2)
        return 2 if size == 1 < largest_rows and not member.models[key].forecast.has_tried(2) else size

    def reserve(self, key: ModelKey, placement: Placement, rows: int) -> None:
        """Reserves the busy members for a backlog that waits for them: other models come after it there."""
        chosen = placement.member
        busy = [each for each in self._members if each.takes_now(key) and (each is chosen or not each.has_room())]
        busy = busy or [chosen]  # an ejected one
        rows_per_s = sum(each.rows_per_s(key, placement.most_rows) for each in busy)
        for member in busy:
            self._reserved_s[member] = self._reserved_s.get(member, 0.0) + (rows / rows_per_s if rows_per_s else 0.0)

    # For admission.

    def completion(self, key: ModelKey, max_rows: int) -> CompletionForecast:
        """Returns when the slots that run a model complete its work; at once if no member runs it."""
        if key not in self._completions:
            trusted = self._trusted(key)
            measured = [member for member in trusted if member.seconds(key, 1) is not None]
            self._completions[key] = self._completion(measured or trusted, key, max_rows)
        return self._completions[key]

    def _completion(self, members: Sequence[Member], key: ModelKey, max_rows: int) -> CompletionForecast:
        lanes = []
        for member in members:
            times = Placement(member, key, member.worthwhile_rows(key, _ANY_ROWS))
            reserved_s = self._reserved_s.get(member, 0.0)
            lanes += [Lane(wait_s + reserved_s, times) for wait_s in member.until_free_s(self._now_s)]
        return CompletionForecast(lanes or [Lane(0.0, BatchTimes())], max_rows)

    def alone_s(self, key: ModelKey, rows: int) -> float | None:
        """Returns the least seconds that a batch of a model takes on an idle member; None if nothing is known."""
        known_s = [member.seconds(key, rows) for member in self._trusted(key)]
        return min((each for each in known_s if each is not None), default=None)

    def part(self, key: ModelKey, other: ModelKey) -> float:
        """Returns the part of another model's work that goes to the members of a model."""
        if other == key:
            return 1.0
        rates = {each: each.rows_per_s(other, _ANY_ROWS) for each in self._trusted(other)}
        if not any(rates.values()):
            rates = {each: float(each.side_by_side) for each in rates}
        mine, everywhere = self._trusted(key), sum(rates.values())
        return sum(rate for member, rate in rates.items() if member in mine) / everywhere if everywhere else 1.0

    def _available(self, key: ModelKey) -> list[Member]:
        """Returns the members that can run a model, ejected ones included."""
        return [member for member in self._members if not member.problem_with(key)]

    def _trusted(self, key: ModelKey) -> list[Member]:
        """Returns the members that run a model and are not ejected; the ejected ones if there is no other."""
        available = self._available(key)
        return [member for member in available if member.models[key].health.trusted] or available

    def _candidate(self, member: Member, key: ModelKey, rows: int) -> Candidate[Member]:
        return member.candidate(key, rows, self._now_s, self._reserved_s.get(member, 0.0))
