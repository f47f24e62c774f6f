import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firstline_core.routing.bounds import (
    betting,
    clopper_pearson,
    hoeffding_bentkus,
    rows_needed_by_betting,
    upper_bound,
)


def _from_sum(losses: Any, mean: float) -> float:
    return float(hoeffding_bentkus(losses.sum(), len(losses), mean))


P_VALUES: Any = [betting, _from_sum]
LOSSES = arrays(np.float64, st.integers(0, 60), elements=st.floats(0, 1))


@pytest.mark.parametrize("p_value", P_VALUES)
@given(LOSSES, st.floats(0.01, 0.9), st.floats(0.001, 0.09))
@settings(max_examples=50)
def test_a_bound_holds_for_larger_risks(p_value: Any, losses: Any, mean: float, more: float) -> None:
    assert 0 <= p_value(losses, mean + more) <= p_value(losses, mean) <= 1


@pytest.mark.parametrize("p_value", P_VALUES)
@pytest.mark.parametrize("shape", ["ends", "thirds", "even"])
def test_a_true_mean_is_seldom_excluded(p_value: Any, shape: str) -> None:
    random = np.random.default_rng(3)
    draws: Any = {
        "ends": lambda: (random.random(150) < 0.1).astype(float),
        "thirds": lambda: random.choice([0, 1 / 3, 2 / 3], 150, p=[0.8, 0.1, 0.1]),
        "even": lambda: random.uniform(0, 0.2, 150),
    }
    excluded = sum(p_value(draws[shape](), 0.1) <= 0.1 for _ in range(300))
    assert excluded <= 45  # 30 expected at most; more than 45 has a probability below 0.3 %


DISTRIBUTIONS: Any = {
    "always the mean": ([0.3], [1.0], 10),
    "seldom right": ([0.0, 1.0], [0.01, 0.99], 8),
    "seldom wrong": ([0.0, 1.0], [0.9, 0.1], 8),
    "halves": ([0.0, 0.5, 1.0], [0.6, 0.3, 0.1], 6),
    "around the mean": ([0.25, 0.5], [0.5, 0.5], 8),
}


@pytest.mark.parametrize("p_value", P_VALUES)
@pytest.mark.parametrize("shape", DISTRIBUTIONS)
def test_p_values_are_valid_for_every_sequence(p_value: Any, shape: str) -> None:
    """Enumerates all sequences of losses whose mean is the tested one: P(p-value <= x) is at most x for every x."""
    values, chances, rows = DISTRIBUTIONS[shape]
    mean = float(np.dot(values, chances))
    found = np.array([p_value(np.array(losses), mean) for losses in product(values, repeat=rows)])
    likely = np.array([math.prod(each) for each in product(chances, repeat=rows)])
    assert likely.sum() == pytest.approx(1)
    for level in np.unique(found):
        assert likely[found <= level].sum() <= level + 1e-9


@pytest.mark.parametrize(("total", "rows", "mean"), [(0.2, 1, 0.5), (0, 50, 0.1), (0.4, 200, 0.05), (5, 50, 0.1)])
def test_few_losses_have_the_p_value_of_hoeffding(total: float, rows: int, mean: float) -> None:
    """Hoeffding 1963, "Probability Inequalities for Sums of Bounded Random Variables", theorem 1, as a product."""
    seen = total / rows
    expected = ((1 - mean) / (1 - seen)) ** (rows - total) * ((mean / seen) ** total if total else 1)
    assert hoeffding_bentkus(total, rows, mean) == pytest.approx(min(expected, 1), rel=1e-9)


@pytest.mark.parametrize(("total", "rows", "mean"), [(3.9, 1000, 0.02), (2 + 1e-12, 200, 0.05), (13.95, 400, 0.1)])
def test_more_losses_have_the_p_value_of_bentkus(total: float, rows: int, mean: float) -> None:
    """Bentkus 2004, "On Hoeffding's Inequalities": e times the binomial tail, here summed term by term."""
    errors = math.ceil(total - 1e-9)
    tail = sum(math.comb(rows, k) * mean**k * (1 - mean) ** (rows - k) for k in range(errors + 1))
    assert hoeffding_bentkus(total, rows, mean) == pytest.approx(math.e * tail, rel=1e-9)


def _wealth_by_hand(losses: list[float], mean: float) -> float:
    """The largest wealth of the player of Waudby-Smith and Ramdas 2024, one bet after the other."""
    wealth = largest = 1.0
    total, squares = 0.5, 0.25
    for number, loss in enumerate(losses, 1):
        spread = math.sqrt(squares / number)
        wealth *= 1 + min(0.75, math.sqrt(2 * math.log(1 / 0.05) / len(losses)) / spread * (1 - total / number)) * (
            (mean - loss) / (1 - mean)
        )
        largest = max(largest, wealth)
        total += loss
        squares += (loss - total / (number + 1)) ** 2
    return largest


@pytest.mark.parametrize("mean", [0.2, 0.4, 0.6])
@pytest.mark.parametrize("rows", [1, 2, 5, 40, 300])
def test_the_p_value_of_betting_is_the_inverse_wealth(rows: int, mean: float) -> None:
    losses = [round((number * 0.618 % 1) ** 2, 3) for number in range(rows)]
    assert betting(np.array(losses), mean) == pytest.approx(1 / _wealth_by_hand(losses, mean), rel=1e-9)


@pytest.mark.parametrize(("loss", "mean", "level"), [(0.0, 0.05, 0.05), (0.1, 0.3, 0.01), (0.5, 0.52, 0.5)])
def test_fewer_rows_than_needed_prove_nothing_by_betting(loss: float, mean: float, level: float) -> None:
    """The largest bet throughout, which no sequence of losses exceeds."""
    rows = rows_needed_by_betting(loss, mean, level)
    growth = 1 + 0.75 * (mean - loss) / (1 - mean)
    assert growth ** (rows - 1) < 1 / level <= growth**rows
    assert betting(np.full(rows - 1, loss), mean) > level


def test_betting_is_stronger_if_losses_vary_little() -> None:
    losses = np.random.default_rng(0).uniform(0.02, 0.06, 200)
    bet, average = (upper_bound(partial(p_value, losses), 0.05) for p_value in P_VALUES)
    assert losses.mean() < bet < 0.07 < average


def test_one_loss_by_hand() -> None:
    assert betting(np.array([1.0]), 0.5) == 1  # all bets lost
    assert _from_sum(np.zeros(2), 0.5) == pytest.approx(0.25)
    assert betting(np.array([]), 0.5) == _from_sum(np.array([]), 0.5) == 1


@pytest.mark.parametrize(("errors", "trials"), [(0, 1), (0, 299), (3, 150), (12, 400), (149, 150), (900, 1_000_000)])
@pytest.mark.parametrize("level", [0.1, 0.05, 1e-4])
def test_the_bound_agrees_with_the_beta_quantile(errors: int, trials: int, level: float) -> None:
    from scipy import special

    expected = special.betaincinv(errors + 1, trials - errors, 1 - level)
    assert clopper_pearson(errors, trials, level) == pytest.approx(expected, rel=1e-8)


def test_no_trials_have_an_upper_bound_of_one() -> None:
    assert clopper_pearson(0, 0, 0.05) == clopper_pearson(7, 7, 0.05) == 1


@pytest.mark.parametrize("level", [1e-300, 1e-12, 0.05, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("mean", [1e-9, 0.25, 1 - 1e-9])
def test_a_p_value_with_a_step_is_bounded_quickly(mean: float, level: float) -> None:
    tested = []

    def p_value(at: float) -> float:
        tested.append(at)
        return 0.0 if at >= mean else 1.0

    assert upper_bound(p_value, level) == pytest.approx(mean, rel=1e-9)
    assert len(tested) < 100
