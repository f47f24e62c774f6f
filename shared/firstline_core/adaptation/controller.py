"""How far down its ladder a device stands: down at once where a guard asks, up one rung after a calm while.

Heat below its limit is no matter of steps: see `Thermostat`, which shares requests between two rungs. The device
stands at whichever is further down.

Hysteresis has two parts. Going up needs room on every guard for `dwell_s` without a break. And a step up that had to
be taken back soon is tried again only after twice as long as the last time, as a circuit breaker probes a link: a
device whose neighbours take the best variant's memory asks now and then, and not every minute.

Below the last rung there is one place more: to shed. What the cache does not know is then the cloud's, or is refused;
the device computes nothing until no guard asks for that any more. Nobody sheds who has not stood on the last rung for
`settle_s`: first a cheaper variant, then none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from firstline_core.adaptation.guards import (
    NOBODY,
    TREND_POINTS,
    Advice,
    Limits,
    Word,
    battery,
    heat,
    memory,
    trend_per_s,
)
from firstline_core.adaptation.ladder import Rung
from firstline_core.adaptation.thermostat import Thermostat
from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors.snapshot import Snapshot

_LONGEST = 32  # times the usual dwell
_NEVER_S = float("-inf")


class Patience(Struct, frozen=True):
    """How long a step is waited for.

    Attributes:
        settle_s: after a step, before the next one down that is not urgent, and before shedding: heat, and what the
            kernel averages, need this long to show what a step did.
        dwell_s: of room on every guard, before a step up.
        regret_s: a step up that is taken back sooner than this was a mistake.
    """

    settle_s: float = 10.0
    dwell_s: float = 20.0
    regret_s: float = 120.0


class Stance(NamedTuple):
    """Where a device stands.

    Attributes:
        rung: the best that may be used.
        shed: not even that one: nothing is computed here.
        word: of the guard that has it stand there, or that moved it last; None before any did.
        share: of the requests that would be given that rung, which get the next one instead; 0 to 1.
        unload: memory asks for what stands above to be unloaded.
    """

    rung: int = 0
    shed: bool = False
    word: Word | None = None
    share: float = 0.0
    unload: bool = False


class Controller:
    """One device's, for one ladder. Its owner calls `look` every few seconds with what the sensors say.

    Args:
        rungs: see `ladder`.
        limits: that it keeps.
        patience: see there.

    Attributes:
        stance: where it stands.
    """

    def __init__(self, rungs: Sequence[Rung], limits: Limits, patience: Patience | None = None) -> None:
        self._rungs = tuple(rungs)
        self._limits = limits
        self._patience = patience or Patience()
        self._thermostat = Thermostat(len(self._rungs) - 1, limits)
        self._place = 0  # that it stepped to, of the rungs; their number is where it sheds
        self._stepped: Word | None = None
        self._lowest_since_s: float | None = None
        self._seen: set[str] = set()
        self._heats: deque[tuple[float, float]] = deque()
        self._moved_s = self._rose_s = _NEVER_S
        self._calm_since_s: float | None = None
        self._dwells = 1
        self.stance = Stance()

    def look(self, snapshot: Snapshot, unloaded: Collection[int] = ()) -> Stance:
        """Takes a reading; where the device stands from now on.

        Args:
            snapshot: its `at_s` never goes back.
            unloaded: rungs that would have to be loaded first.
        """
        now_s, rise_c_per_s = snapshot.at_s, self._rise_c_per_s(snapshot)
        words = self._words(snapshot, rise_c_per_s, unloaded)
        self._step(words, now_s)
        depth = self._thermostat.look(now_s, measured(snapshot.hottest_c), rise_c_per_s)
        return self._stand(depth, words, now_s)

    def _step(self, words: Sequence[Word], now_s: float) -> None:
        worst = min(words, key=lambda word: word.advice)
        self._outlive_regret(now_s)
        below = self._below(worst.advice, now_s)
        if below > self._place:
            self._fall(below, worst, now_s)
        elif worst.advice is Advice.ROOM or (self._sheds and worst.advice is Advice.STAY):
            # It is told of the guard that held the device down, not of another one that has room too.
            held_down = self._stepped.guard if self._stepped is not None else ""
            self._rise(next((word for word in words if word.guard == held_down), worst), now_s)
        else:
            self._calm_since_s = None

    def _stand(self, depth: float, words: Sequence[Word], now_s: float) -> Stance:
        """Where the further down of steps and heat has it stand."""
        last, of = len(self._rungs) - 1, {word.guard: word for word in words}
        unload = of["memory"].advice <= Advice.CHEAPEST
        if depth > self._place:
            self.stance = Stance(int(depth), False, of["heat"], depth - int(depth), unload)
        else:
            freed = self._place == 0 and self.stance.word is not None and self.stance.word.guard == "heat"
            word = of["heat"] if freed else self._stepped
            self.stance = Stance(min(self._place, last), self._sheds, word, 0.0, unload)
        if self.stance.rung < last:
            self._lowest_since_s = None
        elif self._lowest_since_s is None:
            self._lowest_since_s = now_s
        return self.stance

    @property
    def _sheds(self) -> bool:
        return self._place == len(self._rungs)

    def _words(self, snapshot: Snapshot, rise_c_per_s: float, unloaded: Collection[int]) -> list[Word]:
        better_bytes = self._rungs[self._place - 1].memory_bytes if self._place - 1 in unloaded else 0
        said = [
            memory(snapshot, better_bytes, self._limits),
            heat(snapshot, rise_c_per_s, self._limits),
            battery(snapshot, self._place, len(self._rungs), self._limits),
        ]
        return [self._unless_lost(word) for word in said]

    def _unless_lost(self, word: Word) -> Word:
        """A sensor that is silent all at once is no room for a better variant: what it last said may still be so."""
        if word.reason != NOBODY:
            self._seen.add(word.guard)
        elif word.guard in self._seen:
            return Word(Advice.STAY, word.guard, "nobody measures it any more")
        return word

    def _rise_c_per_s(self, snapshot: Snapshot) -> float:
        """How fast the hottest part grows hotter since the last step: over the horizon, and three readings at least."""
        hottest_c = measured(snapshot.hottest_c)
        if hottest_c is not None:
            self._heats.append((snapshot.at_s, hottest_c))
        while len(self._heats) > TREND_POINTS and self._heats[0][0] < snapshot.at_s - self._limits.horizon_s:
            self._heats.popleft()
        return trend_per_s(tuple(self._heats))

    def _below(self, advice: Advice, now_s: float) -> int:
        """The place that this advice asks for now, where that is further down."""
        last, settle_s = len(self._rungs) - 1, self._patience.settle_s
        if advice is Advice.SHED and now_s - self._lowest_s(now_s) >= settle_s:
            return last + 1
        if advice <= Advice.CHEAPEST:
            return last
        return min(last, self._place + 1) if advice is Advice.DOWN and now_s - self._moved_s >= settle_s else 0

    def _lowest_s(self, now_s: float) -> float:
        """Since when it has stood on the last rung, anew after it shed; a ladder of one has never stood elsewhere."""
        if len(self._rungs) == 1:
            return self._moved_s
        return now_s if self._lowest_since_s is None else self._lowest_since_s

    def _fall(self, place: int, word: Word, now_s: float) -> None:
        if now_s - self._rose_s < self._patience.regret_s:
            self._dwells = min(_LONGEST, 2 * self._dwells)
            self._rose_s = _NEVER_S
        self._move(place, word, now_s)

    def _rise(self, word: Word, now_s: float) -> None:
        if self._place == 0:
            return
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        dwell_s = self._patience.dwell_s * (1 if self._sheds else self._dwells)
        if now_s - self._calm_since_s >= dwell_s:
            if not self._sheds:  # the way out of shedding is no venture
                self._rose_s = now_s
            self._lowest_since_s = None
            self._move(self._place - 1, word, now_s)

    def _outlive_regret(self, now_s: float) -> None:
        """A step up that has lasted was none to regret: the next is waited for half as long."""
        if self._rose_s > _NEVER_S and now_s - self._rose_s >= self._patience.regret_s:
            self._dwells = max(1, self._dwells // 2)
            self._rose_s = _NEVER_S

    def _move(self, place: int, word: Word, now_s: float) -> None:
        self._place, self._moved_s, self._stepped = place, now_s, word
        self._calm_since_s = None
        self._heats.clear()  # it is the trend of another variant's heat
