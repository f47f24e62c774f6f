"""The pool of executors: starts each batch on one of them, places models on them, and reports their state.

It also probes executors that are idle or ejected: it sends them copies of batches. `attempts.py` repeats batches that
fail or are late.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from firstline_core.bundle.loading import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.base import ExecutionReport, ExecutorReport, ModelOnExecutor, Outcome
from firstline_gateway.executors.dispatch.attempts import Attempt, Attempts, BatchRun, Work
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.dispatch.placement import ExecutorSnapshot, problem_with
from firstline_gateway.models.repository import ServedModel

# A probe is given up after so many times its expected time, and after at least so long. Its time counts against
# `PROBE_SHARE`: the longer a probe may hang, the longer an executor that has recovered waits for the next one.
_PROBE_LATE, _PROBE_S = 20.0, 0.25

log = logger(__name__)


class Dispatcher:
    """Runs batches on its executors. Belongs to one event loop.

    Args:
        members: the executors, at least one.
        clock: for all durations and deadlines.
        is_named: whether the settings name the executors; if not, they are not reported by name.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        clock: Clock = SYSTEM_CLOCK,
        is_named: bool = True,
    ) -> None:
        self.members = tuple(members)
        self._is_named = is_named
        self._clock = clock
        self._attempts = Attempts(self.members, clock)
        self._runs: set[asyncio.Future[list[Outcome]]] = set()
        self._probes: dict[asyncio.Future[list[Outcome]], Attempt] = {}
        self._local = next((each for each in self.members if each.in_process is not None), None)

    async def start(self) -> None:
        """Starts the executors."""
        await asyncio.gather(*(member.executor.start() for member in self.members))

    def problem_with(self, key: ModelKey) -> str:
        """Returns why a model cannot run at the moment, as sentences, or "" if it can."""
        if self._is_named:
            return problem_with(self.members, key)
        # The only executor takes every model that is loaded, also one that is not in memory now.
        problems = [member.executor.problem_with(key) for member in self.members]
        return " ".join(problems) if all(problems) else ""

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever an executor may have become free."""
        self._attempts.subscribe(listener)

    # Batches.

    def snapshot(self) -> ExecutorSnapshot:
        """Returns the executors as they are now, to place batches."""
        return ExecutorSnapshot(self.members, self._clock.monotonic_s())

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        """Returns a model to prepare its inputs in this process; None if all executors prepare them elsewhere."""
        for each in self.members:
            if each.prepares_here is not None and (found := each.prepares_here.loaded_model(key)) is not None:
                return found
        return None

    def loop_times(self, key: ModelKey) -> LoopTimes | None:
        """Returns the times of a model on the event loop; None if they are unknown or its batches have to be placed."""
        return self._local.loop_times(key) if self._local is not None else None

    def run_on_loop(
        self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]
    ) -> list[Outcome] | Awaitable[list[Outcome]]:
        """Runs a batch of a quick model in this turn of the event loop; see `loop_times`.

        Returns:
            The outcomes, or an awaitable if the batch runs on another executor after all.
        """
        member = self._local
        assert member is not None and member.in_process is not None  # noqa: S101 (see `loop_times`)
        started_s = self._clock.monotonic_s()
        self._attempts.count_new_batch(member)
        try:
            outcomes = member.in_process.run_on_loop(key, inputs, deadlines_s)
        except Exception as error:
            self._attempts.failed(self._begun_on_loop(member, Work(key, inputs, deadlines_s), started_s), str(error))
            raise
        if not [outcome for outcome in outcomes if isinstance(outcome, FirstlineError)]:
            member.answered_on_loop(key, self._clock.monotonic_s())
            return outcomes
        work = Work(key, inputs, deadlines_s)
        run = BatchRun(self._attempts, work)
        run.take(self._begun_on_loop(member, work, started_s), outcomes)
        return run.ended.result() if run.ended.done() else self._follow(run)

    def _begun_on_loop(self, member: Member, work: Work, started_s: float) -> Attempt:
        running = member.begin(work.key, work.rows(), started_s, on_loop=True)
        return Attempt(member, running, range(len(work.inputs)))

    def run_on(
        self, member: Member, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]
    ) -> BatchRun:
        """Starts a batch on one executor, whose slot is taken from now on."""
        work = Work(key, inputs, deadlines_s)
        self._attempts.count_new_batch(member)
        self._probe(work, member)
        run = BatchRun(self._attempts, work)
        run.begin(member, range(len(inputs)))
        self._follow(run)
        return run

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        """Runs a batch now, on the executor with the earliest predicted completion.

        Raises:
            EngineUnavailableError: no executor that has the model answers.
        """
        rows = Work(key, inputs, deadlines_s).rows()
        placement = self.snapshot().place(key, rows, rows, rows)
        if isinstance(placement, FirstlineError):
            raise placement
        return await self.run_on(placement.member, key, inputs, deadlines_s).ended

    def _follow(self, run: BatchRun) -> asyncio.Future[list[Outcome]]:
        self._runs.add(run.ended)
        run.ended.add_done_callback(self._runs.discard)
        return run.ended

    # Probes: copies of one request, which measure an executor without work.

    def _probe(self, work: Work, chosen: Member) -> None:
        key, now_s = work.key, self._clock.monotonic_s()
        for member in self.members:
            if member is chosen or member.problem_with(key) or not member.may_probe(key, now_s):
                continue
            self._attempts.count_repeat("probe", chosen, member)
            attempt, ran = self._attempts.begin(member, Work(key, work.inputs[:1], [None]), [0], is_probe=True)
            self._probes[ran] = attempt
            self._clock.call_at(now_s + self._longest_s(attempt), partial(self._end_probe, ran))
            ran.add_done_callback(self._end_probe)

    def _longest_s(self, attempt: Attempt) -> float:
        running = attempt.running
        if running.run_s is None:
            return max(_PROBE_S, self._attempts.presumed_s(running.key, running.rows))
        return max(_PROBE_S, _PROBE_LATE * running.run_s / running.pace)

    def _end_probe(self, ran: asyncio.Future[list[Outcome]]) -> None:
        """Learns from a probe that ended, or gives up one that took too long."""
        attempt = self._probes.pop(ran, None)
        if attempt is None:
            return
        self._attempts.settle(attempt, ran)
        error = ran.exception() if ran.done() and not ran.cancelled() else None
        if error is not None and not isinstance(error, FirstlineError):
            context = {"message": "a probe failed unexpectedly", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    # Models come and go.

    async def put(self, served: ServedModel) -> None:
        """Places a model on each executor that may run it and can load it.

        A model that an executor cannot load is logged. `served.loaded` is closed if no executor uses it.
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
            seconds = await asyncio.to_thread(member.profiled, mine)
            await member.executor.put(mine)
            member.place(mine, seconds)
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
        self._attempts.close()
        for ran in tuple(self._probes):
            self._end_probe(ran)
        return all(await asyncio.gather(*(member.executor.close(timeout_s) for member in self.members)))

    # Reports.

    def report(self) -> ExecutionReport:
        """Returns the counts of all executors and servers, and the state of each executor by its name."""
        overhead: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
        up: dict[tuple[str, ...], float] = {}
        batches: Counter[tuple[str, ...]] = Counter()
        repeats: Counter[tuple[str, ...]] = Counter()
        for report in (member.executor.report() for member in self.members):
            up |= report.up
            batches.update(report.batches)
            repeats.update(report.repeats)
            for key, found in report.overhead.items():
                overhead[key].include(found)
        for member in self.members:
            if member.url:
                up[member.url,] = float(member.usable)
                batches.update({(member.url, outcome): count for outcome, count in member.outcomes.items()})
                repeats.update({("hedge",): 0, ("retry",): 0})
        repeats.update({(why,): count for why, count in self._attempts.repeated.items()})
        names = dict.fromkeys([member.name for member in self.members]) if self._is_named else ()
        return ExecutionReport(up, batches, repeats, overhead, tuple(map(self._report_of, names)))

    def _report_of(self, name: str) -> ExecutorReport:
        members, now_s = [member for member in self.members if member.name == name], self._clock.monotonic_s()
        models = {
            key: _model_report([member for member in members if key in member.models], key, now_s)
            for key in members[0].models
        }
        problem = ""
        if not any(member.usable for member in members):
            problem = " ".join(sorted({each.problem for each in models.values()})) or "It has no model."
        return ExecutorReport(
            name=name,
            problem=problem,
            slots=sum(member.slots for member in members),
            under_way=sum(len(member.running) for member in members),
            batches=sum((member.outcomes for member in members), Counter()),
            models=models,
        )


def _model_report(members: Sequence[Member], key: ModelKey, now_s: float) -> ModelOnExecutor:
    """Returns the state of a model on one executor: on its only member, or on all its servers together."""
    problems = [_problem_now(member, key, now_s) for member in members]
    return ModelOnExecutor(
        pace=min(member.models[key].forecast.pace for member in members),
        problem=" ".join(problems) if all(problems) else "",
        oldest_s=max(member.oldest_s(key, now_s) for member in members),
    )


def _problem_now(member: Member, key: ModelKey, now_s: float) -> str:
    health = member.models[key].health
    problem = member.problem_with(key)
    if not problem and not health.trusted:
        problem = f"It failed; it is tried again in {health.left_s(now_s):.1f} s."
    return problem
