import math
import random

import pytest

from firstline_core.routing.audit import alarm, begin, update
from firstline_core.routing.sampling import (
    HORIZON_S,
    NO_PEAK,
    Allowance,
    AuditBudget,
    Peak,
    add_answers,
    after_time,
    charge,
    propensity,
    refill,
    spaced_probabilities,
)

HOUR = 3600


def spent(allowance: Allowance, arrivals: list[tuple[float, int]], seed: int = 0) -> list[tuple[float, int]]:
    """When answers of which size were drawn."""
    rng, budget, drawn = random.Random(seed), AuditBudget(0.0), []
    for at_s, size_bytes in arrivals:
        budget = after_time(budget, at_s, allowance)
        audited = rng.random() < propensity(budget, allowance)
        budget = add_answers(budget, 1, size_bytes)
        if audited:
            budget = charge(budget, size_bytes)
            drawn.append((at_s, size_bytes))
    return drawn


def most_in_an_hour(drawn: list[tuple[float, int]], weigh: bool) -> int:
    """The most audits, or bytes, that any hour saw."""
    return max(
        (sum(size if weigh else 1 for at, size in drawn if start <= at < start + HOUR) for start, _ in drawn), default=0
    )


@pytest.mark.parametrize("every_s", [0.5, 5, 60])
def test_a_steady_stream_uses_most_of_the_allowance(every_s: float) -> None:
    allowance = Allowance(per_hour=60, bytes_per_hour=1e12, max_share=1)
    arrivals = [(number * every_s, 1000) for number in range(int(6 * HOUR / every_s))]
    drawn = spent(allowance, arrivals)
    assert most_in_an_hour(drawn, weigh=False) <= 61
    assert len(drawn) > 0.6 * 60 * min(6, len(arrivals) / 60)


def test_bursts_exceed_the_budgets_by_one_payload() -> None:
    allowance = Allowance(per_hour=100, bytes_per_hour=1_000_000, max_share=1)
    arrivals = [(hour * HOUR + number * 0.01, 40_000) for hour in (0, 3, 4, 5, 9) for number in range(5_000)]
    drawn = spent(allowance, arrivals)
    assert drawn
    assert most_in_an_hour(drawn, weigh=False) <= 101
    assert most_in_an_hour(drawn, weigh=True) <= 1_000_000 + 40_000


def test_a_device_with_little_traffic_audits_its_largest_share() -> None:
    allowance = Allowance(per_hour=60, bytes_per_hour=1e9, max_share=0.1)
    budget = after_time(AuditBudget(0.0), HOUR, allowance)
    assert propensity(budget, allowance) == 0.1
    drawn = spent(allowance, [(number * 30.0, 1000) for number in range(5000)])
    assert len(drawn) == pytest.approx(500, rel=0.15)


def test_the_budget_begins_empty() -> None:
    assert AuditBudget(7.0) == (7, 0, 0, 0, 0)
    assert propensity(AuditBudget(0.0), Allowance(60, 1e9, 1)) == 0
    never = Allowance(0, 1e9, 1)
    assert propensity(after_time(AuditBudget(0.0), 9 * HOUR, never), never) == 0


def test_a_propensity_does_not_depend_on_its_answer() -> None:
    allowance = Allowance(60, 1e6, 1)
    budget = after_time(AuditBudget(0.0), HORIZON_S, allowance)
    before = propensity(budget, allowance)
    assert before == 1
    assert propensity(charge(budget, 10_000_000), allowance) == 0  # a debt, which later answers wait for
    assert propensity(add_answers(budget, 1, 10_000_000), allowance) < before


def test_time_fills_the_buckets_and_fades_the_traffic() -> None:
    """Three quarters of the allowance an hour; the traffic fades by e within ten minutes."""
    allowance = Allowance(per_hour=80, bytes_per_hour=8000, max_share=1)
    budget = after_time(AuditBudget(100.0, 50.0, 900.0, 2.0, -100.0), 700.0, allowance)
    fade = math.exp(-1)
    assert budget == (700.0, pytest.approx(50 * fade), pytest.approx(900 * fade), 12.0, 900.0)
    assert after_time(budget, 1e6, allowance)[3:] == (20.0, 2000.0)


@pytest.mark.parametrize(
    ("rows", "size_bytes", "audits", "audit_bytes", "expected"),
    [
        (10, 1000, 9, 900, 0.5),  # the largest share
        (100, 1000, 9, 900, 0.09),  # 9 audits for the traffic of 100 rows
        (100, 1000, 90, 200, 0.2),  # 200 bytes for that of 1000
        (100, 1000, 9, 20, 0.02),
        (100, 1000, 30, 900, 0.3),
        (0, 0, 1, 1, 0.5),
        (100, 1000, 0.5, 900, 0.005),
        (100, 1000, 9, 0.5, 0.0005),
        (100, 1000, 0, 900, 0),
        (100, 1000, 9, 0, 0),
        (100, 0, 9, 0, 0),
    ],
)
def test_a_propensity_by_hand(
    rows: float, size_bytes: float, audits: float, audit_bytes: float, expected: float
) -> None:
    budget = AuditBudget(0.0, rows, size_bytes, audits, audit_bytes)
    assert propensity(budget, Allowance(1, 1, 0.5)) == pytest.approx(expected)


def test_a_peak_is_that_of_this_day_and_the_one_before() -> None:
    assert NO_PEAK.value == 0
    first = NO_PEAK.with_number(3, 100.0)
    assert (first, first.value) == (Peak(0, 3, 0), 3)
    assert first.with_number(2, 200.0) == first == first.with_number(3, 200.0)
    assert first.with_number(5, 86_399.0) == Peak(0, 5, 0)
    second = first.with_number(1, 86_400.0)
    assert (second, second.value) == (Peak(1, 1, 3), 3)
    assert second.with_number(2, 100_000.0) == Peak(1, 2, 3)
    assert second.with_number(1, 3 * 86_400.0) == Peak(3, 1, 0)


@pytest.mark.parametrize(
    ("target", "taken", "expected"),
    [(0.25, 0.0, (0.25, 0.25)), (0.25, 0.5, (0.5, 0.25)), (0.5, 0.5, (1, 0.5)), (0.5, 0.75, (1, 0.25)), (1, 1, (0, 0))],
)
def test_a_drawn_answer_has_its_propensity(target: float, taken: float, expected: tuple[float, float]) -> None:
    """The source pauses with the probability `taken`; otherwise the answer is drawn with the first number."""
    found = spaced_probabilities(target, taken)
    assert found == expected
    assert (1 - taken) * found[0] == found[1]


def test_a_small_allowance_still_saves_up_for_one() -> None:
    assert refill(0.0, HOUR, 1.0) == 0.75
    assert refill(0.0, 100 * HOUR, 1.0) == 1.0
    assert refill(0.0, 100 * HOUR, 0.25) == 1.0
    assert refill(0.0, 100 * HOUR, 0.0) == refill(9.0, 0.0, 0.0) == 0.0
    assert refill(0.0, 100 * HOUR, 400.0) == 100.0


def alarms(risk: float, runs: int, allowance: Allowance, *, shifted: float | None = None) -> tuple[int, list[int]]:
    """How many runs alarm at 10 % of a promised 20 %, in traffic that comes in bursts, and after how many audits."""
    rng, found = random.Random(1), list[int]()
    for _ in range(runs):
        state, budget, at_s = begin(0.2), after_time(AuditBudget(0.0), HORIZON_S, allowance), HORIZON_S
        for number in range(1500):
            at_s += 0.05 if number % 100 else rng.expovariate(1 / 300)
            budget = after_time(budget, at_s, allowance)
            share = propensity(budget, allowance)
            budget = add_answers(budget, 1, 1000)
            now = risk if shifted is None or number < 750 else shifted
            if rng.random() < share:
                budget = charge(budget, 1000)
                state = update(state, float(rng.random() < now))
                if alarm(state, 0.1):
                    found.append(state.audits)
                    break
    return len(found), found


def test_drawn_audits_find_a_shift_and_seldom_alarm_falsely() -> None:
    allowance = Allowance(per_hour=120, bytes_per_hour=1e9, max_share=0.5)
    false, _ = alarms(0.2, 60, allowance)
    assert false <= 6 + 3 * (60 * 0.1 * 0.9) ** 0.5
    detected, _ = alarms(0.2, 20, allowance, shifted=0.6)
    assert detected >= 19


def test_a_clock_set_back_earns_no_audits() -> None:
    allowance = Allowance(60, 1e6, 1)
    budget = after_time(AuditBudget(100.0), 50.0, allowance)
    assert (budget.audits, budget.rows) == (0, 0)
