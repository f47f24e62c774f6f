"""Clocks that jump, boots in 1970 and days without power: nothing expires too early, and nothing lives for ever.

A device lives through runs: each begins with a wall clock that is right, unset (1970) or behind, may be corrected
while it runs, and is followed by time without power. What the device believes is held against the true time.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_core.routing.budget import DAY_S, HOUR_S, Budget, Ledger, Meter
from firstline_edge.outbox.ages import Ages

START_S = 1_800_000_000.0
ROUNDING_S = 1e-3


class JumpingClock:
    """True time, and what the device's clocks make of it."""

    def __init__(self) -> None:
        self.true_s = START_S
        self.booted_s = START_S
        self.error_s = 0.0

    def boot(self, error_s: float | None) -> None:
        """Monotonic time begins anew; None for a clock that was never set."""
        self.booted_s = self.true_s
        self.error_s = -self.true_s + 5.0 if error_s is None else error_s

    def monotonic_s(self) -> float:
        return self.true_s - self.booted_s

    def wall_s(self) -> float:
        return self.true_s + self.error_s

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def call_at(self, when_s: float, call: object) -> object:
        raise NotImplementedError


@dataclass(frozen=True)
class Run:
    """One time with power.

    Args:
        error_s: of the wall clock at the boot, never ahead; None where it was not set.
        before_s: until a promise is made.
        corrected: the clock is set right before, after or not.
        after_s: until the power goes.
        off_s: without power.
    """

    error_s: float | None
    before_s: float
    corrected: str
    after_s: float
    off_s: float


durations = st.floats(0, 5 * DAY_S)
runs = st.builds(
    Run,
    st.one_of(st.none(), st.just(0.0), st.floats(-30 * DAY_S, 0)),
    durations,
    st.sampled_from(["before", "after", "never"]),
    durations,
    durations,
)


@given(st.lists(runs, min_size=1, max_size=6))
@settings(max_examples=200)
def test_a_promise_never_looks_older_than_it_is_and_ages_while_there_is_power(lives: list[Run]) -> None:
    """Too old would end a promise before its time; not to age while the device runs would keep it for ever."""
    clock = JumpingClock()
    stored: list[tuple[str, float, float]] = []  # id, believed and true time; as the outbox stores them
    newest_s = 0.0
    powered_s: dict[str, float] = {}
    for number, life in enumerate(lives):
        clock.boot(life.error_s)
        ages = Ages(clock)  # type: ignore[arg-type]
        ages.learn(newest_s, sorted(((name, wall_s) for name, wall_s, _ in stored), key=lambda one: one[1]))
        began_s = clock.true_s
        clock.true_s += life.before_s
        if life.corrected == "before":
            clock.error_s = 0.0
        name = f"promise {number}"
        stored.append((name, ages.wall_s(clock.wall_s()), clock.true_s))
        ages.start(name)
        newest_s = max(newest_s, stored[-1][1])
        if life.corrected == "after":
            clock.error_s = 0.0
        clock.true_s += life.after_s
        for kept, _, born_s in stored:
            powered_s[kept] = clock.true_s - max(began_s, born_s)
            assert ages.of(kept) <= clock.true_s - born_s + _late_s(stored, kept) + ROUNDING_S
            assert ages.of(kept) >= powered_s[kept] - ROUNDING_S
        due = ages.over(DAY_S, 100)
        assert set(due) == {kept for kept, _, _ in stored if ages.of(kept) >= DAY_S}
        clock.true_s += life.off_s


def _late_s(stored: list[tuple[str, float, float]], name: str) -> float:
    """By how much a promise was stored with a time before its own: by a clock that was behind, and nobody knew."""
    return max(0.0, next(born_s - wall_s for kept, wall_s, born_s in stored if kept == name))


@given(
    st.sampled_from([HOUR_S, DAY_S]),
    st.floats(0, 1),
    st.lists(st.one_of(st.none(), st.floats(-1, 0)), max_size=5),
    st.floats(0, 3),
)
@settings(max_examples=200)
def test_a_budget_is_not_given_twice_by_a_clock_that_goes_back(
    period_s: float, spent: float, boots: list[float | None], away: float
) -> None:
    """Spent stays spent for a device that boots unset, or up to a period behind; a later period begins anew."""
    clock, ledger, amount = JumpingClock(), Ledger(), 100.0
    Meter(Budget(amount, period_s), ledger).charge(spent * amount, clock.wall_s(), priced=False)
    for behind in boots:
        clock.boot(None if behind is None else behind * period_s)
        assert Meter(Budget(amount, period_s), ledger).left(clock.wall_s()) <= amount - spent * amount + ROUNDING_S
    clock.true_s += away * period_s
    clock.boot(0.0)
    left = Meter(Budget(amount, period_s), ledger).left(clock.wall_s())
    is_later = clock.true_s // period_s > START_S // period_s
    assert abs(left - (amount if is_later else amount - spent * amount)) < ROUNDING_S
