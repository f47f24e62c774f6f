"""How far down its ladder a device stands: down at once if a guard asks, up one rung after a calm period.

Temperature below its limit is handled by `Thermostat`, which splits the requests between two rungs. The position is
the lower one of steps and thermostat.

Hysteresis has two parts. Stepping up needs room on every guard for `dwell_s` without interruption. A step up that had
to be reverted soon is retried after twice the previous time, as a circuit breaker probes a link.

Below the last rung the device sheds: it computes nothing, and requests that miss the cache go to the gateway or are
refused. It sheds only after `settle_s` on the last rung. Shedding ends when no guard has asked for it for `dwell_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from firstline_core.adaptation import guards
from firstline_core.adaptation.ladder import Rung
from firstline_core.hardware.readings import Snapshot, measured

_LONGEST_DWELL = 32  # times the configured dwell
_NEVER_S = float("-inf")
_RUNGS_PER_C = 0.1
_RUNGS_PER_C_S = 0.01
_URGENT_SHARE = 1 / 3  # of the margin: readings in whole degrees and seconds allow no finer last step
_LONGEST_STEP_S = 10.0  # longest time that one reading is integrated over


class StepTiming(Struct, frozen=True):
    """Times between steps.

    Attributes:
        settle_s: time after a step before the next step down that is not urgent, and before shedding: temperature and
            the kernel's averages need this long to show the effect of a step.
        dwell_s: time with room on every guard before a step up.
        regret_s: a step up that is reverted sooner counts as a mistake.
    """

    settle_s: float = 10.0
    dwell_s: float = 20.0
    regret_s: float = 120.0


class LadderPosition(NamedTuple):
    """Where a device stands on its ladder.

    Attributes:
        rung: the best rung that may be used.
        shedding: whether nothing is computed here.
        verdict: of the guard that holds the device here or moved it last; None before any did.
        next_share: share (0 to 1) of this rung's requests that get the next rung instead.
        unload: whether memory requires that the rungs above are unloaded.
    """

    rung: int = 0
    shedding: bool = False
    verdict: guards.GuardVerdict | None = None
    next_share: float = 0.0
    unload: bool = False


class Thermostat:
    """Proportional-integral controller from temperature to a depth on the ladder that need not be whole.

    Depth 0 is the best rung, and 0.3 gives the next rung to three requests of ten (Astrom and Murray, Feedback Systems,
    chapter 11). The gains need no model of the board: they keep the simulated board of `bench/hardware/thermal.py`
    below its limit, and boards three times as slow and as fast.

    Args:
        last: the last rung.
        limits: the temperature settles at `limits.target_c`.
    """

    def __init__(self, last: int, limits: guards.Limits) -> None:
        self._last = last
        self._limits = limits
        self._integral = 0.0
        self._read_s: float | None = None
        self.depth = 0.0

    def update(self, at_s: float, hottest_c: float | None, rise_c_per_s: float) -> float:
        """Takes a reading and returns the new depth; without a reading the depth stays."""
        elapsed_s = 0.0 if self._read_s is None else min(at_s - self._read_s, _LONGEST_STEP_S)
        self._read_s = at_s
        if hottest_c is None:
            return self.depth
        over_c = guards.forecast_c(hottest_c, rise_c_per_s, self._limits) - self._limits.target_c
        # Bounded, so that a long hot period is not followed by an equally long time on the cheapest rung.
        self._integral = self._bounded(self._integral + _RUNGS_PER_C_S * over_c * elapsed_s)
        self.depth = self._bounded(self._integral + _RUNGS_PER_C * over_c)
        if hottest_c >= self._limits.heat_c - _URGENT_SHARE * self._limits.heat_margin_c:
            self.depth = float(self._last)
        return self.depth

    def _bounded(self, depth: float) -> float:
        return min(float(self._last), max(0.0, depth))


class RequestSplitter:
    """Selects a share of the requests, evenly spaced and without chance; remainders carry over."""

    def __init__(self) -> None:
        self._owed = 0.0

    def selects(self, share: float) -> bool:
        """Whether this request belongs to the share (0 to 1)."""
        self._owed += share
        if self._owed < 1:
            return False
        self._owed -= 1
        return True


class Controller:
    """Controls the position on one ladder.

    Args:
        rungs: from `build_ladder`.
        limits: that it keeps.
        timing: times between steps.

    Attributes:
        position: the present position.
    """

    def __init__(self, rungs: Sequence[Rung], limits: guards.Limits, timing: StepTiming | None = None) -> None:
        self._rungs = tuple(rungs)
        self._limits = limits
        self._timing = timing or StepTiming()
        self._thermostat = Thermostat(len(self._rungs) - 1, limits)
        self._place = 0  # reached by steps; the number of rungs means shedding
        self._step_verdict: guards.GuardVerdict | None = None
        self._lowest_since_s: float | None = None
        self._measured_guards: set[str] = set()
        self._temperatures: deque[tuple[float, float]] = deque()
        self._moved_s = self._rose_s = _NEVER_S
        self._calm_since_s: float | None = None
        self._dwell_factor = 1
        self.position = LadderPosition()

    def update(self, snapshot: Snapshot, unloaded: Collection[int] = ()) -> LadderPosition:
        """Takes a reading and returns the new position.

        Args:
            snapshot: its `at_s` never decreases.
            unloaded: rungs that would have to be loaded first.
        """
        now_s, rise_c_per_s = snapshot.at_s, self._rise_c_per_s(snapshot)
        verdicts = self._verdicts(snapshot, rise_c_per_s, unloaded)
        self._step(verdicts, now_s)
        depth = self._thermostat.update(now_s, measured(snapshot.hottest_c), rise_c_per_s)
        return self._settle(depth, verdicts, now_s)

    def _step(self, verdicts: Sequence[guards.GuardVerdict], now_s: float) -> None:
        worst = min(verdicts, key=lambda verdict: verdict.advice)
        if self._rose_s > _NEVER_S and now_s - self._rose_s >= self._timing.regret_s:  # the last step up has held
            self._dwell_factor = max(1, self._dwell_factor // 2)
            self._rose_s = _NEVER_S
        lower = self._lower_place(worst.advice, now_s)
        if lower > self._place:
            if now_s - self._rose_s < self._timing.regret_s:
                self._dwell_factor = min(_LONGEST_DWELL, 2 * self._dwell_factor)
                self._rose_s = _NEVER_S
            self._move(lower, worst, now_s)
        elif worst.advice is guards.Advice.ROOM or (self._is_shedding and worst.advice > guards.Advice.SHED):
            # Report the guard that had stepped the device down, not another one that has room too.
            cause = self._step_verdict.guard if self._step_verdict is not None else ""
            self._rise(next((verdict for verdict in verdicts if verdict.guard == cause), worst), now_s)
        else:
            self._calm_since_s = None

    def _settle(self, depth: float, verdicts: Sequence[guards.GuardVerdict], now_s: float) -> LadderPosition:
        """Combines steps and thermostat: the lower one decides."""
        last, by_guard = len(self._rungs) - 1, {verdict.guard: verdict for verdict in verdicts}
        unload = by_guard["memory"].advice <= guards.Advice.CHEAPEST
        if depth > self._place:
            self.position = LadderPosition(int(depth), False, by_guard["heat"], depth - int(depth), unload)
        else:
            before = self.position.verdict
            has_cooled = self._place == 0 and before is not None and before.guard == "heat"
            verdict = by_guard["heat"] if has_cooled else self._step_verdict
            self.position = LadderPosition(min(self._place, last), self._is_shedding, verdict, 0.0, unload)
        if self.position.rung < last:
            self._lowest_since_s = None
        elif self._lowest_since_s is None:
            self._lowest_since_s = now_s
        return self.position

    @property
    def _is_shedding(self) -> bool:
        return self._place == len(self._rungs)

    def _verdicts(
        self, snapshot: Snapshot, rise_c_per_s: float, unloaded: Collection[int]
    ) -> list[guards.GuardVerdict]:
        better_bytes = self._rungs[self._place - 1].memory_bytes if self._place - 1 in unloaded else 0
        verdicts = [
            guards.memory_guard(snapshot, better_bytes, self._limits),
            guards.heat_guard(snapshot, rise_c_per_s, self._limits),
            guards.battery_guard(snapshot, self._place, len(self._rungs), self._limits),
        ]
        return [self._unless_lost(verdict) for verdict in verdicts]

    def _unless_lost(self, verdict: guards.GuardVerdict) -> guards.GuardVerdict:
        """A sensor that falls silent does not allow a better variant: its last reading may still apply."""
        if verdict.reason != guards.UNMEASURED:
            self._measured_guards.add(verdict.guard)
        elif verdict.guard in self._measured_guards:
            return guards.GuardVerdict(guards.Advice.STAY, verdict.guard, "its sensor has fallen silent")
        return verdict

    def _rise_c_per_s(self, snapshot: Snapshot) -> float:
        """Slope of the highest temperature since the last step, over the horizon and at least three readings."""
        hottest_c = measured(snapshot.hottest_c)
        if hottest_c is not None:
            self._temperatures.append((snapshot.at_s, hottest_c))
        oldest_s = snapshot.at_s - self._limits.horizon_s
        while len(self._temperatures) > guards.TREND_POINTS and self._temperatures[0][0] < oldest_s:
            self._temperatures.popleft()
        return guards.slope_per_s(tuple(self._temperatures))

    def _lower_place(self, advice: guards.Advice, now_s: float) -> int:
        """Returns the place that the advice asks for now; the present one if it asks for no step down."""
        last, settle_s = len(self._rungs) - 1, self._timing.settle_s
        if advice is guards.Advice.SHED and now_s - self._lowest_s(now_s) >= settle_s:
            return last + 1
        if advice <= guards.Advice.CHEAPEST:
            return last
        if advice is guards.Advice.DOWN and now_s - self._moved_s >= settle_s:
            return min(last, self._place + 1)
        return self._place

    def _lowest_s(self, now_s: float) -> float:
        """Since when the device is on the last rung; a ladder of one rung counts from the last move."""
        if len(self._rungs) == 1:
            return self._moved_s
        return now_s if self._lowest_since_s is None else self._lowest_since_s

    def _rise(self, verdict: guards.GuardVerdict, now_s: float) -> None:
        if self._place == 0:
            return
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        dwell_s = self._timing.dwell_s * (1 if self._is_shedding else self._dwell_factor)
        if now_s - self._calm_since_s >= dwell_s:
            if not self._is_shedding:  # leaving the shedding state is never counted as a mistake
                self._rose_s = now_s
            self._lowest_since_s = None
            self._move(self._place - 1, verdict, now_s)

    def _move(self, place: int, verdict: guards.GuardVerdict, now_s: float) -> None:
        self._place, self._moved_s, self._step_verdict = place, now_s, verdict
        self._calm_since_s = None
        self._temperatures.clear()  # the trend was of another variant's heat
