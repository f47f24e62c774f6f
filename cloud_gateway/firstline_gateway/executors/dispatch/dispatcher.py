"""The engine of several executors: one is asked for each batch, and whatever becomes of it callers see one answer.

To ask twice has no effect but work: inference has none, and what is counted, audited or promised is done once, before
or after. So a batch that fails on one executor is run again on another, one that takes much longer than expected runs
on another as well, and one who gets no work is tried with a copy. How much of that there may be is bounded: where
everything fails, repeats would be the load that finishes it off.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import EngineUnavailableError, FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.statistics import Apart
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import EngineReport, ExecutorReport, InProcess, OnExecutor, Outcome
from firstline_gateway.executors.dispatch import nowhere
from firstline_gateway.executors.dispatch.asking import Asking, Attempt, Ended, Work
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.dispatch.race import Race
from firstline_gateway.executors.dispatch.seats import Look
from firstline_gateway.executors.seating import NoSeat
from firstline_gateway.executors.under_way import UnderWay
from firstline_gateway.models.repository import ServedModel

# So many times what is usual a copy is waited for, and no less than so long; then it has shown what it could.
_PROBE_LATE, _PROBE_S = 20.0, 1.0

_UNMETERED = (
    "Its energy_budget_w does not hold for this model: neither a profile nor power_w says what its batches take; "
    "state power_w, or name a profile that was made with a meter."
)

log = logger(__name__)


class _Here(NamedTuple):
    """Whoever runs models in this process, and what it runs them with."""

    member: Member
    engine: InProcess


class Dispatcher:
    """Runs batches on several executors. Belongs to one event loop.

    Args:
        members: at least one, each with a name of its own.
        clock: for all durations, and what deadlines are on.
    """

    def __init__(self, members: Sequence[Member], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.members = tuple(members)
        self._clock = clock
        self._asking = Asking(self.members, clock)
        self._copies: set[asyncio.Task[None]] = set()
        self._under_way = UnderWay()
        self._here = next(
            (_Here(each, engine) for each in self.members if isinstance(engine := each.executor, InProcess)), None
        )

    @property
    def slots(self) -> int:
        return max(1, sum(member.slots for member in self.members))

    async def start(self) -> None:
        for member in self.members:
            for key in member.keys:
                _tell_unmetered(member, key)
        await asyncio.gather(*(member.executor.start() for member in self.members))

    def trouble(self, key: ModelKey) -> str:
        return nowhere.trouble(self.members, key)

    def report(self) -> EngineReport:
        """What all of them did: the servers behind each, and each by its name."""
        reports = [member.executor.report() for member in self.members]
        apart: defaultdict[ModelKey, Apart] = defaultdict(Apart)
        up: dict[tuple[str, ...], float] = {}
        batches: Counter[tuple[str, ...]] = Counter()
        repeats: Counter[tuple[str, ...]] = Counter()
        for report in reports:
            up |= report.up
            batches.update(report.batches)
            repeats.update(report.repeats)
            for key, found in report.apart.items():
                apart[key].include(found)
        repeats.update({(f"executor_{why}",): float(count) for why, count in self._asking.repeated.items()})
        return EngineReport(up, batches, repeats, apart, tuple(map(self._report_of, self.members)))

    def _report_of(self, member: Member) -> ExecutorReport:
        now_s = self._clock.monotonic_s()
        models = {key: _on(member, key, now_s) for key in member.keys}
        problem = ""
        if not member.usable:
            problem = " ".join(sorted({each.problem for each in models.values()})) or "It has no model."
        return ExecutorReport(
            name=member.name,
            problem=problem,
            slots=member.slots,
            under_way=len(member.running),
            batches=dict(member.outcomes),
            models=models,
            energy_j=member.energy.spent_j,
        )

    # In this process: a small model runs in the thread that asks.

    def measured(self, key: ModelKey) -> Mapping[int, float]:
        """See `InProcess.measured`; nothing where a budget has to be asked first."""
        here = self._here
        if here is None or not here.member.has(key) or not here.member.is_free(key):
            return {}
        return here.engine.measured(key)

    def run_now(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> list[Outcome] | Awaitable[list[Outcome]]:
        """See `InProcess.run_now`; what fails here, or has no room, runs on the other executors."""
        here, work = self._here, Work(key, inputs, deadlines_s)
        assert here is not None  # noqa: S101 (see `measured`)
        rows, started_s = work.rows(range(len(inputs))), self._clock.monotonic_s()
        if not here.member.has_memory(key, rows):
            return self.run(key, inputs, deadlines_s)
        self._asking.earn()
        try:
            outcomes = here.engine.run_now(key, inputs, deadlines_s)
        except Exception as error:
            here.member.failed_here()
            self._asking.doubt(here.member, key, str(error))
            raise
        if not isinstance(outcomes, list):
            return outcomes
        if not any(isinstance(outcome, FirstlineError) for outcome in outcomes):
            now_s = self._clock.monotonic_s()
            here.member.answered_here(key, rows, now_s - started_s, now_s)
            return outcomes
        race = Race(self._asking, work)
        race.begun(here.member, outcomes, started_s)
        return race.outcomes if race.is_over else self._ended(race)

    # One batch.

    def look(self) -> Look:
        """See `HasSeats.look`."""
        return Look(self.members, self._clock.monotonic_s(), self._run_on)

    def on_free(self, call: Callable[[], None]) -> None:
        """See `HasSeats.on_free`."""
        self._asking.on_free = call

    def _run_on(
        self, member: Member, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> Awaitable[list[Outcome]]:
        """Asks that executor at once, so that whoever looks next finds it taken."""
        return self._ended(self._begun(Work(key, inputs, deadlines_s), member))

    async def run(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        """Runs a batch where it is done first, now."""
        rows = Work(key, inputs, deadlines_s).rows(range(len(inputs)))
        seat = Look(self.members, self._clock.monotonic_s(), self._run_on).seat(key, rows, rows, rows)
        if isinstance(seat, NoSeat):
            raise seat.error
        return await seat.run(inputs, deadlines_s)

    def _begun(self, work: Work, first: Member) -> Race:
        self._asking.earn()
        self._probe(work, first)
        race = Race(self._asking, work)
        race.begin(first, range(len(work.inputs)))
        return race

    async def _ended(self, race: Race) -> list[Outcome]:
        with self._under_way:
            outcomes = await race.end()
        failed = [each for each in outcomes if isinstance(each, EngineUnavailableError)]
        if len(failed) == len(outcomes):
            raise failed[0]
        return outcomes

    # Copies, so that what gets no work is known all the same.

    def _probe(self, work: Work, chosen: Member) -> None:
        key, rows, now_s = work.key, work.rows([0]), self._clock.monotonic_s()
        for member in self.members:
            if member is chosen or member.trouble(key) or not member.may_probe(key, now_s):
                continue
            if not member.candidate(key, rows, now_s).fits:
                continue
            self._asking.repeated["probe"] += 1
            copy, asked = self._asking.begin(member, Work(key, work.inputs[:1], [None]), [0], is_probe=True)
            task = asyncio.create_task(self._copy(copy, asked))
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)

    async def _copy(self, attempt: Attempt, asked: asyncio.Task[Ended]) -> None:
        running = attempt.running
        if running.run_s is not None:
            longest_s = _PROBE_LATE * running.run_s / running.pace
        else:
            longest_s = self._asking.presumed_s(running.key, running.rows)
        slow = asyncio.ensure_future(self._clock.sleep(max(_PROBE_S, longest_s)))
        try:
            await asyncio.wait([asked, slow], return_when=asyncio.FIRST_COMPLETED)
        finally:
            slow.cancel()
            self._asking.settle(attempt, asked)
        if asked.done() and not asked.cancelled():
            asked.result()  # what is no `FirstlineError` is told like any task's

    # Models come and go.

    async def put(self, served: ServedModel) -> None:
        """See `Executor.put`; an executor that may not run it, or has no room for it, goes without."""
        taken = False
        for member in self.members:
            had = member.has(served.key)
            if had:
                member.displace(served.key)
                await member.executor.drop(served.key)  # copies may run on it yet
            if not member.takes(served.key.name):
                continue
            if not member.memory.fits(served.memory_bytes):
                log.warning("no room for a model on an executor", executor=member.name, model=served.key.name)
                continue
            if member.load is not None:
                try:
                    mine = replace(served, loaded=await asyncio.to_thread(member.load, served))
                except FirstlineError as error:
                    log.error(
                        "model not on an executor", executor=member.name, model=served.key.name, error=error.message
                    )
                    continue
            else:
                mine, taken = served, taken or (self._here is not None and member is self._here.member)
            costs = await asyncio.to_thread(member.costs, mine)
            await member.executor.put(mine)
            member.place(mine, costs)
            _tell_unmetered(member, mine.key)
        if served.loaded is not None and not taken:
            served.loaded.close()

    async def drop(self, key: ModelKey) -> None:
        for member in self.members:
            if member.has(key):
                member.displace(key)
                await member.executor.drop(key)

    async def close(self, timeout_s: float) -> bool:
        await self._under_way.end(timeout_s)
        for task in tuple(self._copies):
            task.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)
        return all(await asyncio.gather(*(member.executor.close(timeout_s) for member in self.members)))


def _on(member: Member, key: ModelKey, now_s: float) -> OnExecutor:
    return OnExecutor(
        pace=member.pace(key),
        problem=_problem(member, key, now_s),
        energy_source=member.source(key),
        oldest_s=member.oldest_s(key, now_s),
        mind=_UNMETERED if member.is_unmetered(key) else "",
    )


def _tell_unmetered(member: Member, key: ModelKey) -> None:
    if member.is_unmetered(key):
        log.warning("energy budget does not hold", executor=member.name, model=key.name, error=_UNMETERED)


def _problem(member: Member, key: ModelKey, now_s: float) -> str:
    """Why it gets no batches of a model that it has, as a sentence; "" where it gets some."""
    if trouble := member.trouble(key):
        return trouble
    if member.left_alone(key):
        return f"It failed; it is tried again in {member.standing(key).left_s(now_s):.1f} s."
    return ""
