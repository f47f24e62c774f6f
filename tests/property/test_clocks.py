"""Clocks that jump, boots in 1970 and days without power: nothing expires too early, and nothing lives for ever.

A device lives through runs: each begins with a wall clock that is right, unset (1970) or behind, may be corrected
while it runs, and is followed by time without power. What the device believes is held against the true time.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_core.routing.budget import Budget, Ledger, Meter
from firstline_core.units import DAY_S, HOUR_S
from firstline_edge.outbox.timeline import LEAST_JUMP_S, Timeline

START_S = 1_800_000_000.0
ROUNDING_S = 1e-3
TOLERANCE_S = LEAST_JUMP_S + 0.01


class JumpingClock:
    """True time, and what the device's clocks make of it."""

    def __init__(self) -> None:
        self.true_s = START_S
        self.booted_s = START_S
        self.error_s = 0.0

    def boot(self, error_s: float | None) -> None:
        """Monotonic time starts again; None for a clock that was never set."""
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


@dataclass
class Promise:
    """What an outbox stores of it, and the truth."""

    name: str
    stored_s: float
    born_s: float
    late_s: float


@given(st.lists(runs, min_size=1, max_size=6))
@settings(max_examples=200)
def test_promise_ages_only_with_elapsed_time(lives: list[Run]) -> None:
    """Too old would end a promise before its time; not to age while the device runs would keep it for ever.

    A life whose clock was never right leaves stamps that are too early, by an unknown amount.
    """
    clock = JumpingClock()
    promises: list[Promise] = []
    for number, life in enumerate(lives):
        clock.boot(life.error_s)
        ages = Timeline(clock)
        stored = sorted(((one.name, one.stored_s) for one in promises), key=lambda one: one[1])
        ages.load(max((one.stored_s for one in promises), default=0.0), stored)
        began_s = clock.true_s
        clock.true_s += life.before_s
        if life.corrected == "before":
            clock.error_s = 0.0
            look(ages, promises)
        new = Promise(f"promise {number}", ages.wall_s(), clock.true_s, 0.0)
        promises.append(new)
        ages.start(new.name)
        if life.corrected == "after":
            clock.error_s = 0.0
            look(ages, promises)
        new.late_s = clock.true_s - ages.wall_s()
        assert new.late_s >= -TOLERANCE_S
        clock.true_s += life.after_s
        look(ages, promises)
        for one in promises:
            true_s = clock.true_s - one.born_s
            assert ages.age_s(one.name) <= true_s + one.late_s + TOLERANCE_S
            assert ages.age_s(one.name) >= clock.true_s - max(began_s, one.born_s) - TOLERANCE_S
            if clock.error_s == 0.0:  # and so are the days without power known
                assert ages.age_s(one.name) >= true_s - TOLERANCE_S
                assert one is not new or ages.age_s(one.name) <= true_s + TOLERANCE_S
        due = ages.at_least(DAY_S, 100)
        assert set(due) == {one.name for one in promises if ages.age_s(one.name) >= DAY_S}
        clock.true_s += life.off_s


def look(ages: Timeline, promises: list[Promise]) -> None:
    """As the outbox does, which finds by their times what it stored itself."""
    leap = ages.check_clock()
    for one in promises if leap is not None else ():
        if leap.from_s <= one.stored_s <= leap.until_s:
            one.stored_s += leap.by_s


@given(
    st.sampled_from([HOUR_S, DAY_S]),
    st.floats(0, 1),
    st.lists(st.one_of(st.none(), st.floats(-1, 0)), max_size=5),
    st.floats(0, 3),
)
@settings(max_examples=200)
def test_clock_that_goes_back_grants_no_second_budget(
    period_s: float, spent: float, boots: list[float | None], away: float
) -> None:
    """Spending survives boots with an unset clock or one a period behind; a later period has a full budget."""
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
