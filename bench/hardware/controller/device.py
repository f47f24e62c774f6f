"""The simulated device: its threads and their queue, its link, its temperature."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bench.hardware.controller.scenario import Scenario, Variant, arrivals, rungs_of
from bench.hardware.thermal import CORES, HOT_C, Board
from firstline_core.adaptation.controller import Controller, RequestSplitter
from firstline_core.adaptation.guards import Limits
from firstline_core.adaptation.ladder import EnergyPrices, choose_rung
from firstline_core.hardware.readings import Measured, Snapshot
from firstline_core.routing.timing import Flight, LinkTiming
from firstline_core.units import HOUR_S
from firstline_edge.cloud.client import LatenessGate
from firstline_edge.models.models import RelativeRunTimes

_SAMPLE_S = 5.02  # the sampler waits for five seconds after each reading
_ROW_BYTES = 2300
_RESERVE_MS = 20.0


@dataclass(frozen=True, slots=True)
class _Row:
    """A row to answer: its image, deadline and rung."""

    image: int
    deadline_s: float
    rung: int


@dataclass(slots=True)
class HourResult:
    """The counts of an hour."""

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

    def energy_j(self, scenario: Scenario) -> float:
        """Returns the energy of runs and of the radio, without that of the idle board."""
        return self.core_s * scenario.core_w + self.sent * scenario.joules_sent


class Simulated:
    """One device for an hour.

    Args:
        scenario: assumed constants.
        variants: variants of the ladder.
        fixed: the only rung to use; None for the controller and the choice.
    """

    def __init__(self, scenario: Scenario, variants: Sequence[Variant], fixed: int | None) -> None:
        self._scenario = scenario
        self._board = Board(scenario.warmer_c)
        self._rungs = rungs = rungs_of(variants, scenario)
        by_name = {each.name: each for each in variants}
        self._variants = [by_name[rung.variant] for rung in rungs]
        self._images = len(variants[0].keeps)
        self._fixed = fixed
        self._splitter = RequestSplitter()
        self._run_mj = tuple(rung.energy_mj or 0.0 for rung in rungs)
        self._escalated = tuple(1 - each.certified for each in self._variants)
        self._random = random.Random(scenario.seed)
        self._now_s = 0.0
        self._paces = [RelativeRunTimes() for _ in rungs]
        self._controller = Controller(rungs, Limits(heat_c=HOT_C), scenario.timing)
        self._busy: list[tuple[float, int]] = []  # when each run ends, on which rung
        self._waiting: deque[_Row] = deque()
        self._expected_ms = 0.0  # of what runs and what waits
        self._link_free_s = 0.0
        self._timing = LinkTiming()
        self._lateness_gate = LatenessGate()
        self._returning: list[tuple[float, float, Flight]] = []  # answers of the full model: when, after how long
        self.result = HourResult()

    def run(self) -> HourResult:
        """Simulates the hour."""
        sample_s = 0.0
        for at_s, deadline_ms in arrivals(self._scenario):
            while sample_s <= at_s:
                self._to(sample_s)
                self._sample()
                sample_s += _SAMPLE_S
            self._to(at_s)
            self._arrives(at_s, deadline_ms)
        self._to(HOUR_S)
        return self.result

    def _to(self, at_s: float) -> None:
        """Advances the time: runs end and begin, and the board becomes warmer."""
        while self._busy and self._busy[0][0] <= at_s:
            self._pass(self._busy[0][0])
            _, rung = heapq.heappop(self._busy)
            self._expected_ms -= self._rungs[rung].row_ms
            if self._waiting:
                self._begin(self._waiting.popleft())
        self._pass(at_s)

    def _pass(self, at_s: float) -> None:
        left_s, busy = at_s - self._now_s, len(self._busy)
        self.result.core_s += left_s * busy * self._board.speed  # a slower clock takes less power
        while left_s > 0:
            step_s = min(left_s, 0.5)
            speed = self._board.speed
            self._board.live(step_s, busy / CORES * speed)
            self.result.throttled_s += step_s if speed < 1 else 0.0
            left_s -= step_s
        self.result.hottest_c = max(self.result.hottest_c, self._board.hottest_c)
        self._now_s = max(self._now_s, at_s)
        while self._returning and self._returning[0][0] <= at_s:
            done_s, took_s, flight = heapq.heappop(self._returning)
            self._timing.ended(flight)
            self._timing.answered(_ROW_BYTES, took_s, done_s, ahead_bytes=flight.ahead_bytes)

    def _sample(self) -> None:
        """Reads the sensors, in whole degrees like the board's sensor, and updates the controller."""
        if self._fixed is None:
            throttled = Measured(float(self._board.speed < 1), "/throttled")
            soc = {"soc": Measured(float(int(self._board.hottest_c)), "/soc")}
            after = self._controller.update(
                Snapshot(at_s=self._now_s, temperature_c=soc, throttling={"throttled": throttled})
            )
            self.result.shared_s += _SAMPLE_S * (after.next_share > 0 or after.rung > 0)

    def _arrives(self, at_s: float, left_ms: float) -> None:
        self.result.rows += 1
        deadline_s = at_s + left_ms / 1000
        wait_ms = self._expected_ms / CORES if len(self._busy) >= CORES else 0.0
        if self._controller.position.shedding:
            self._escalate(at_s, deadline_s, has_answer=False)
            return
        rung = self._fixed if self._fixed is not None else self._chosen(wait_ms, left_ms)
        took_ms = self._paces[rung].factor * self._rungs[rung].row_ms
        if wait_ms and wait_ms + took_ms >= left_ms:  # `Workers.run` refuses it
            self._escalate(at_s, deadline_s, has_answer=False)
            return
        self._expected_ms += self._rungs[rung].row_ms
        row = _Row(self._random.randrange(self._images), deadline_s, rung)
        if len(self._busy) < CORES:
            self._begin(row)
        else:
            self._waiting.append(row)

    def _chosen(self, wait_ms: float, left_ms: float) -> int:
        current, busy = self._controller.position.rung, min(1.0, len(self._busy) / CORES)
        usable = range(current, len(self._rungs))
        runs_ms = [self._paces[rung].sure * self._rungs[rung].row_ms for rung in usable]
        link_s = self._timing.predicted_s(_ROW_BYTES, 0.95, self._now_s)
        chosen = choose_rung(
            runs_ms,
            busy,
            [wait_ms] * len(runs_ms),
            left_ms - min(_RESERVE_MS, left_ms / 4),
            math.inf if link_s is None else 1000 * link_s,
            prices=EnergyPrices(self._run_mj[current:], self._escalated[current:], 1000 * self._scenario.joules_sent),
        )
        if chosen == 0 and len(runs_ms) > 1 and self._splitter.selects(self._controller.position.next_share):
            chosen = 1  # as `BundleVariants.choose`
        return current + chosen

    def _begin(self, row: _Row) -> None:
        deadline_s, rung = row.deadline_s, row.rung
        expected_s = self._rungs[rung].row_ms / 1000
        took_s = expected_s / self._board.speed * self._random.lognormvariate(0.0, 0.1)
        self._paces[rung].ran(took_s, expected_s)
        done_s = self._now_s + took_s
        heapq.heappush(self._busy, (done_s, rung))
        variant = self._variants[rung]
        if variant.keeps[row.image]:
            self.result.kept += 1
            self.result.disagreed += bool(variant.disagrees[row.image])
            self.result.met += done_s <= deadline_s
            self.result.answered += done_s <= deadline_s
        else:
            self._escalate(done_s, deadline_s, has_answer=done_s <= deadline_s)

    def _escalate(self, at_s: float, deadline_s: float, *, has_answer: bool) -> None:
        """Escalates a row if an answer is expected in time; otherwise the edge answer is provisional."""
        predicted_s = self._timing.predicted_s(_ROW_BYTES, 0.95, at_s)
        self.result.sent += 1  # now or by the outbox
        if has_answer and not self._lateness_gate.allows(predicted_s, deadline_s - at_s):
            self.result.answered += 1
            return
        begins_s = max(at_s, self._link_free_s)
        self._link_free_s = begins_s + 1 / self._scenario.link_per_s
        took_s = self._link_free_s - at_s + self._scenario.link_ms / 1000 * self._random.lognormvariate(0.0, 0.15)
        heapq.heappush(self._returning, (at_s + took_s, took_s, self._timing.sent(_ROW_BYTES)))
        in_time = at_s + took_s <= deadline_s
        self.result.met += in_time
        self.result.answered += in_time or has_answer
