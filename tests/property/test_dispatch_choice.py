"""Which executor a batch goes to, whatever they are like."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.forecast import (
    WINDOW_S,
    Candidate,
    Energy,
    Memory,
    earliest_completion,
    free_s,
)

seconds = st.floats(0, 100)
candidate = st.builds(
    Candidate,
    executor=st.integers(0, 9),
    wait_s=seconds,
    run_s=st.none() | seconds,
    under_way=st.integers(0, 20),
    trusted=st.booleans(),
    memory_bytes=st.floats(0, 1e9),
    free_bytes=st.floats(-1e9, 1e9) | st.just(math.inf),
    energy_j=st.floats(0, 100),
    left_j=st.floats(-100, 100) | st.just(math.inf),
)


def wait_s(left_s: list[float], slots: int) -> float:
    return free_s(left_s, slots)[0]


def _fits(each: Candidate[int]) -> bool:
    """What takes nothing is within a budget that another batch has overdrawn."""
    fits_energy = each.energy_j == 0 or each.energy_j <= each.left_j
    return each.memory_bytes <= each.free_bytes and fits_energy


@given(st.lists(candidate, max_size=8))
@example([Candidate(0, 1.0, 1.0, energy_j=0.0, left_j=-1.0)])
@example([Candidate(0, 1.0, 1.0, energy_j=1.0, left_j=0.5)])
def test_the_earliest_within_the_budgets_is_chosen(candidates: list[Candidate[int]]) -> None:
    chosen = earliest_completion(candidates)
    fitting = [each for each in candidates if _fits(each)]
    if chosen is None:
        assert not fitting, "an executor had room"
        return
    assert chosen in fitting, "never one over its budget while another fits, nor else"
    trusted = [each for each in fitting if each.trusted]
    assert chosen.trusted or not trusted
    assert chosen.done_s == min(each.done_s for each in (trusted or fitting))


@given(st.lists(seconds, max_size=30), st.integers(1, 8))
def test_free_slots_follow_ended_batches(left_s: list[float], slots: int) -> None:
    found_s = wait_s(left_s, slots)
    if len(left_s) < slots:
        assert found_s == 0
    else:
        assert found_s <= sum(left_s) / slots * (1 + 1e-9), "the earliest of the slots is no later than their mean"
        assert found_s >= min(left_s)


@given(st.lists(st.floats(0.001, 0.1), min_size=2, max_size=5), st.integers(1, 3), st.integers(1, 200))
def test_simultaneous_batches_spread_over_executors(run_s: list[float], slots: int, batches: int) -> None:
    """Each choice adds to the running work that the next one sees: no batch would have finished earlier elsewhere,
    and all work ends within one batch of what a perfect division would take."""
    given_to: dict[int, list[float]] = {name: [] for name in range(len(run_s))}
    ends_s = []
    for _ in range(batches):
        candidates = [
            Candidate(name, wait_s(given_to[name], slots), each, len(given_to[name])) for name, each in enumerate(run_s)
        ]
        chosen = earliest_completion(candidates)
        ends_s.append(chosen.done_s)
        given_to[chosen.executor].append(run_s[chosen.executor])
    rate = sum(slots / each for each in run_s)
    assert max(ends_s) <= batches / rate + max(run_s) + 1e-9
    assert ends_s == sorted(ends_s), "later ones are done later: none was passed by"


def test_equal_executors_share_equally() -> None:
    given_to: Counter[int] = Counter()
    for _ in range(9):
        chosen = earliest_completion(
            Candidate(name, wait_s([0.01] * given_to[name], 2), 0.01, given_to[name]) for name in range(3)
        )
        given_to[chosen.executor] += 1
    assert set(given_to.values()) == {3}


@given(
    st.floats(0.1, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.floats(0.01, 500)), min_size=1, max_size=60),
)
def test_energy_stays_within_the_average_and_one_batch(budget_w: float, asked: list[tuple[float, float]]) -> None:
    energy, now_s, spent_j, largest_j = Energy(budget_w), 0.0, 0.0, 0.0
    for pause_s, joules in asked:
        now_s += pause_s
        if joules <= energy.left_j(now_s):
            assert energy.wait_s(joules, now_s) == 0
            energy.spend(joules, now_s)
            spent_j, largest_j = spent_j + joules, max(largest_j, joules)
        else:
            wait = energy.wait_s(joules, now_s)
            now_s += wait * (1 + 1e-9) + 1e-9
            assert energy.left_j(now_s) >= joules, "after that wait there is room"
        assert spent_j <= budget_w * (WINDOW_S + now_s) * (1 + 1e-6) + largest_j
    assert energy.spent_j == pytest.approx(spent_j)


def test_missing_budget_is_unlimited() -> None:
    assert (Energy(0).left_j(0), Memory(0).free_bytes, Memory(0).fits(1e18)) == (math.inf, math.inf, True)
    small = Memory(100)
    small.models[ModelKey("m", 1)], small.batches_bytes = 60, 30
    assert (small.free_bytes, small.fits(40), small.fits(41)) == (10, True, False)


@given(st.floats(0.1, 10), st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=5))
def test_the_energy_budget_is_charged_the_actual_costs(budget_w: float, batches: list[tuple[float, float]]) -> None:
    """Whatever was reserved for them; and nothing counts as spent before they end."""
    energy = Energy(budget_w)
    for reserved_j, _ in batches:
        energy.reserve(reserved_j, 0.0)
    assert energy.spent_j == 0
    for reserved_j, took_j in batches:
        energy.settle(reserved_j, took_j, 0.0)
    took_j = sum(took for _, took in batches)
    assert energy.spent_j == pytest.approx(took_j)
    least_j = 1000 * budget_w  # so that the minute's budget is used up, and all of it is seen
    energy.spend(least_j, 0.0)
    assert energy.left_j(0.0) == pytest.approx(budget_w * WINDOW_S - took_j - least_j)
