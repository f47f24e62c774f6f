"""One simulated device for an hour: its threads and their queue, its link, its heat."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bench.hardware.controller.scenario import HOUR_S, Stated, Variant, arrivals, rungs_of
from bench.hardware.thermal import CORES, HOT_C, Board, Heat
from firstline_core.adaptation.controller import Controller, RequestSplitter
from firstline_core.adaptation.guards import Limits
from firstline_core.adaptation.ladder import EnergyPrices, choose_rung
from firstline_core.hardware.readings import Measured, Snapshot
from firstline_core.routing.timing import Flight, LinkTiming
from firstline_edge.cloud.client import LatenessGate
from firstline_edge.models.models import Pace

_SAMPLE_S = 5.02  # the sampler waits for five seconds after each reading
_ROW_BYTES = 2300
_RESERVE_MS = 20.0


@dataclass(frozen=True, slots=True)
class _Row:
    """One that is to be answered: which image, and by when."""

    image: int
    deadline_s: float
    rung: int


@dataclass(slots=True)
class Told:
    """What came of an hour."""

    rows: int = 0
    met: int = 0
    answered: int = 0
    kept: int = 0
    disagreed: int = 0
    throttled_s: float = 0.0
    hottest_c: float = 0.0
    core_s: float = 0.0
    sent: int = 0
    shared_s: float = 0.0

    def energy_j(self, stated: Stated) -> float:
        """Beyond the idle board: of runs and of the radio."""
        return self.core_s * stated.core_w + self.sent * stated.joules_sent


class Simulated:
    """One device for an hour.

    Args:
        stated: see there.
        heat: see `fitted`.
        variants: of which the ladder is made.
        fixed: the only rung that is ever used; None for the controller and the choice.
    """

    def __init__(self, stated: Stated, heat: Heat, variants: Sequence[Variant], fixed: int | None) -> None:
        self._stated = stated
        self._board = Board(heat, stated.warmer_c)
        self._rungs = rungs = rungs_of(variants, stated)
        by_name = {each.name: each for each in variants}
        self._variants = [by_name[rung.variant] for rung in rungs]
        self._images = len(variants[0].keeps)
        self._fixed = fixed
        self._splitter = RequestSplitter()
        self._run_mj = tuple(rung.energy_mj or 0.0 for rung in rungs)
        self._asked = tuple(1 - each.certified for each in self._variants)
        self._random = random.Random(stated.seed)
        self._now_s = 0.0
        self._paces = [Pace() for _ in rungs]
        self._controller = Controller(rungs, Limits(heat_c=HOT_C), stated.timing)
        self._busy: list[tuple[float, int]] = []  # when each run ends, on which rung
        self._waiting: deque[_Row] = deque()
        self._expected_ms = 0.0  # of what runs and what waits
        self._link_free_s = 0.0
        self._timing = LinkTiming()
        self._punctuality = LatenessGate()
        self._returning: list[tuple[float, float, Flight]] = []  # answers of the full model: when, after how long
        self.told = Told()

    def run(self) -> Told:
        """The hour."""
        sample_s = 0.0
        for at_s, deadline_ms in arrivals(self._stated):
            while sample_s <= at_s:
                self._to(sample_s)
                self._look()
                sample_s += _SAMPLE_S
            self._to(at_s)
            self._arrives(at_s, deadline_ms)
        self._to(self._stated.hours * HOUR_S)
        return self.told

    def _to(self, at_s: float) -> None:
        """Time passes: runs end, others begin, and the board warms up."""
        while self._busy and self._busy[0][0] <= at_s:
            self._pass(self._busy[0][0])
            _, rung = heapq.heappop(self._busy)
            self._expected_ms -= self._rungs[rung].row_ms
            if self._waiting:
                self._begin(self._waiting.popleft())
        self._pass(at_s)

    def _pass(self, at_s: float) -> None:
        left_s, busy = at_s - self._now_s, len(self._busy)
        self.told.core_s += left_s * busy * self._board.speed  # a slower clock takes less power
        while left_s > 0:
            step_s = min(left_s, 0.5)
            speed = self._board.speed
            self._board.live(step_s, busy / CORES * speed)
            self.told.throttled_s += step_s if speed < 1 else 0.0
            left_s -= step_s
        self.told.hottest_c = max(self.told.hottest_c, self._board.hottest_c)
        self._now_s = max(self._now_s, at_s)
        while self._returning and self._returning[0][0] <= at_s:
            done_s, took_s, flight = heapq.heappop(self._returning)
            self._timing.ended(flight)
            self._timing.answered(_ROW_BYTES, took_s, done_s, ahead_bytes=flight.ahead_bytes)

    def _look(self) -> None:
        """The sampler's reading: whole degrees, as the board's sensor has them."""
        if self._fixed is None:
            throttled = Measured(float(self._board.speed < 1), "/throttled")
            soc = {"soc": Measured(float(int(self._board.hottest_c)), "/soc")}
            after = self._controller.update(
                Snapshot(at_s=self._now_s, temperature_c=soc, throttling={"throttled": throttled})
            )
            self.told.shared_s += _SAMPLE_S * (after.next_share > 0 or after.rung > 0)

    def _arrives(self, at_s: float, left_ms: float) -> None:
        self.told.rows += 1
        deadline_s = at_s + left_ms / 1000
        wait_ms = self._expected_ms / CORES if len(self._busy) >= CORES else 0.0
        if self._controller.position.shedding:
            self._ask(at_s, deadline_s, has_answer=False)
            return
        rung = self._fixed if self._fixed is not None else self._chosen(wait_ms, left_ms)
        took_ms = self._paces[rung].factor * self._rungs[rung].row_ms
        if wait_ms and wait_ms + took_ms >= left_ms:  # `Workers.run` refuses it
            self._ask(at_s, deadline_s, has_answer=False)
            return
        self._expected_ms += self._rungs[rung].row_ms
        row = _Row(self._random.randrange(self._images), deadline_s, rung)
        if len(self._busy) < CORES:
            self._begin(row)
        else:
            self._waiting.append(row)

    def _chosen(self, wait_ms: float, left_ms: float) -> int:
        standing, busy = self._controller.position.rung, min(1.0, len(self._busy) / CORES)
        usable = range(standing, len(self._rungs))
        runs_ms = [self._paces[rung].sure * self._rungs[rung].row_ms for rung in usable]
        link_s = self._timing.predicted_s(_ROW_BYTES, 0.95, self._now_s)
        chosen = choose_rung(
            runs_ms,
            busy,
            wait_ms,
            left_ms - min(_RESERVE_MS, left_ms / 4),
            math.inf if link_s is None else 1000 * link_s,
            prices=EnergyPrices(self._run_mj[standing:], self._asked[standing:], 1000 * self._stated.joules_sent),
        )
        if chosen == 0 and len(runs_ms) > 1 and self._splitter.selects(self._controller.position.next_share):
            chosen = 1  # as `Variants.choose`
        return standing + chosen

    def _begin(self, row: _Row) -> None:
        deadline_s, rung = row.deadline_s, row.rung
        expected_s = self._rungs[rung].row_ms / 1000
        took_s = expected_s / self._board.speed * self._random.lognormvariate(0.0, 0.1)
        self._paces[rung].ran(took_s, expected_s)
        done_s = self._now_s + took_s
        heapq.heappush(self._busy, (done_s, rung))
        said = self._variants[rung]
        if said.keeps[row.image]:
            self.told.kept += 1
            self.told.disagreed += bool(said.disagrees[row.image])
            self.told.met += done_s <= deadline_s
            self.told.answered += done_s <= deadline_s
        else:
            self._ask(done_s, deadline_s, has_answer=done_s <= deadline_s)

    def _ask(self, at_s: float, deadline_s: float, *, has_answer: bool) -> None:
        """The full model, where it can be expected in time; else the edge answer is provisional, and this later."""
        predicted_s = self._timing.predicted_s(_ROW_BYTES, 0.95, at_s)
        self.told.sent += 1  # now or by the outbox
        if has_answer and not self._punctuality.allows(predicted_s, deadline_s - at_s):
            self.told.answered += 1
            return
        begins_s = max(at_s, self._link_free_s)
        self._link_free_s = begins_s + 1 / self._stated.link_per_s
        took_s = self._link_free_s - at_s + self._stated.link_ms / 1000 * self._random.lognormvariate(0.0, 0.15)
        heapq.heappush(self._returning, (at_s + took_s, took_s, self._timing.sent(_ROW_BYTES)))
        choose_rung = at_s + took_s <= deadline_s
        self.told.met += choose_rung
        self.told.answered += choose_rung or has_answer
