"""Runs seeds: each is five simulated minutes, and the same every time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import numpy as np

from bench.simulation.simulated_time import LoopClock, SimulatedLoop, simulate
from chaos.simulation.book import Book, Violation
from chaos.simulation.cloud import Cloud
from chaos.simulation.device import Device
from chaos.simulation.models import INPUT, repeated
from chaos.simulation.plan import LENGTH_S, Ask, Jump, Plan, Repeat, Restart, draw
from firstline_core.errors import FirstlineError
from firstline_core.types import InferRequest, Tensor
from firstline_edge.outbox.database import Receiver

_MEMORY = Path("/dev/shm")
_BREAKER_S = 65.0
"""The longest wait of a breaker, and its probes."""
_PATIENCE_S = 900.0
"""For promises, once nothing goes wrong any more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    trace: str
    steps: int
    simulated_s: float
    counts: dict[str, int]


def run_seed(seed: int) -> Outcome:
    """Raises `Violation` where an invariant does not hold."""
    return run_plan(draw(seed))


def run_plan(plan: Plan) -> Outcome:
    """As `run_seed`."""
    with _folder() as folder, quiet():
        return simulate(_Simulation(plan, folder).run())


class _Simulation:
    """One seed's world."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._clock, self._gateway_clock = LoopClock(), LoopClock()
        self._book = Book(plan, self._clock)
        # One for each tier: how long one waits must not change what the other does.
        tiers = [random.Random(f"{plan.seed} {tier}") for tier in ("device", "cloud")]
        self._cloud = Cloud(plan, folder, self._gateway_clock, tiers[1], self._book)
        self._device = Device(plan, folder, self._clock, tiers[0], cloud=self._cloud, book=self._book)
        self._ids = random.Random(f"{plan.seed} ids")

    async def run(self) -> Outcome:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert isinstance(loop, SimulatedLoop) and main is not None
        loop.set_exception_handler(lambda _loop, context: self._book.broke(context.get("exception")))
        self._cloud.start()
        await self._device.start()
        loop.watch(lambda: self._check_step(main))
        try:
            return await self._five_minutes()
        except (asyncio.CancelledError, ExceptionGroup, Violation):
            if self._book.found is None:
                raise
            raise self._book.found from None
        finally:
            loop.watch(lambda: None)
            while main.cancelling():  # Python 3.13 cancels again who leaves a group of tasks by an error
                main.uncancel()
            await self._device.kill()
            await self._cloud.kill()

    async def _five_minutes(self) -> Outcome:
        async with asyncio.TaskGroup() as tasks:
            for restart in self._plan.restarts:
                tasks.create_task(self._restart(restart))
            tasks.create_task(self._traffic())
            tasks.create_task(self._jumps(self._plan.jumps, self._clock))
            tasks.create_task(self._jumps(self._plan.gateway_jumps, self._gateway_clock))
            tasks.create_task(self._cloud.refresh(LENGTH_S))
            for repeat in self._plan.repeats:
                tasks.create_task(self._repeat(repeat))
            tasks.create_task(self._recovery())
        await self._drained()
        self._book.counted_audits(self._cloud.audits())
        await self._book.close(self._device.outbox, self._cloud.recorded())
        return Outcome(
            self._plan.seed, self._book.trace, self._book.steps, self._clock.monotonic_s(), self._book.counts
        )

    def _check_step(self, main: asyncio.Task[Outcome]) -> None:
        try:  # `contextlib.suppress` takes longer, which matters in each step
            self._cloud.check_bounds()
            if self._device.up:
                self._book.step(self._device.outbox.depth)
        except Violation:
            pass
        if self._book.found is not None:
            main.cancel()

    async def _until(self, when_s: float) -> None:
        await self._clock.sleep(max(0.0, when_s - self._clock.monotonic_s()))

    async def _traffic(self) -> None:
        for ask in self._plan.asks:
            await self._until(ask.at_s)
            if self._device.up:  # no listener otherwise, and the caller knows
                self._ask(ask)
        await self._until(LENGTH_S)

    def _ask(self, ask: Ask) -> None:
        request_id = str(UUID(int=self._ids.getrandbits(128), version=4))
        self._book.asked(request_id, ask)
        now_s = self._clock.monotonic_s()
        self._device.ask(
            InferRequest(
                ask.model,
                (Tensor(INPUT, np.array(ask.values, np.float32).reshape(-1, 1)),),
                request_id,
                route=ask.route,
                privacy=ask.privacy,
                wait=ask.wait,
                deadline_s=None if ask.timeout_s is None else now_s + ask.timeout_s,
                principal="local",
            )
        )

    async def _restart(self, restart: Restart) -> None:
        await self._until(restart.at_s)
        device = restart.tier == "agent"
        if device and not self._device.up:  # it is being restarted already
            return
        if device:
            self._book.killed()
            await self._device.kill()
        else:
            await self._cloud.kill()
        await self._clock.sleep(restart.down_s)
        if device:
            await self._device.start()
        else:
            self._cloud.start()

    async def _jumps(self, jumps: Iterable[Jump], clock: LoopClock) -> None:
        for jump in sorted(jumps, key=lambda jump: jump.at_s):
            await self._until(jump.at_s)
            clock.wall_ahead_s += jump.by_s

    async def _repeat(self, repeat: Repeat) -> None:
        """Asked as often as it is planned; answered the last time at the latest."""
        request = repeated(repeat.value, str(UUID(int=self._ids.getrandbits(128), version=4)), repeat.promised)
        for when_s in repeat.at_s:
            await self._until(when_s)
            while True:
                try:
                    await self._cloud.answer(request)
                except FirstlineError:
                    if when_s != repeat.at_s[-1]:
                        break
                    await self._clock.sleep(1.0)
                else:
                    self._book.repeated(request)
                    break

    async def _recovery(self) -> None:
        """The breaker's, once nothing goes wrong any more."""
        await self._until(self._plan.quiet_from_s + _BREAKER_S)
        available = self._device.chain.available
        self._book.holds(available, "the link has worked for {:.0f} s, and is not used", _BREAKER_S)

    async def _drained(self) -> None:
        ends_s = self._clock.monotonic_s() + _PATIENCE_S
        while self._clock.monotonic_s() < ends_s:
            if not self._device.outbox.depth and not await self._device.outbox.unannounced(Receiver.APPLICATIONS, 1):
                return
            await self._clock.sleep(1.0)


@dataclass(slots=True)
class Tally:
    """Of many seeds."""

    seeds: int = 0
    steps: int = 0
    simulated_s: float = 0.0
    core_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    traces: dict[int, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.simulated_s += other.simulated_s
        self.core_s += other.core_s
        self.counts += other.counts
        self.violations += other.violations
        self.traces |= other.traces


def run_seeds(seeds: Iterable[int]) -> Tally:
    """One after the other, on one core; what a seed violates is kept, with what repeats it."""
    tally = Tally()
    for seed in seeds:
        began_s = time.process_time()
        try:
            outcome = run_seed(seed)
        except Violation as error:
            tally.violations.append(str(error))
        else:
            tally.steps += outcome.steps
            tally.simulated_s += outcome.simulated_s
            tally.counts += Counter(outcome.counts)
            tally.traces[seed] = outcome.trace
        tally.seeds += 1
        tally.core_s += time.process_time() - began_s
    return tally


def run_many(first: int, count: int, processes: int, tell: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """Runs `count` seeds from `first` on, in `processes` processes."""
    total, at_once = Tally(), 50
    parts = [range(begin, min(begin + at_once, first + count)) for begin in range(first, first + count, at_once)]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as workers:
        for part in workers.map(run_seeds, parts):
            total.add(part)
            tell(total)
    return total


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """In memory where there is such a place: a simulated disk has its own time."""
    folder = Path(tempfile.mkdtemp(prefix="firstline-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What goes wrong here is meant to."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
