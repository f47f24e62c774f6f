from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firstline_core.routing.bounds import betting, clopper_pearson, hoeffding_bentkus, upper_bound


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
    from scipy import stats

    expected = stats.beta.ppf(1 - level, errors + 1, trials - errors)
    assert clopper_pearson(errors, trials, level) == pytest.approx(expected, rel=1e-8)


def test_no_trials_have_an_upper_bound_of_one() -> None:
    assert clopper_pearson(0, 0, 0.05) == clopper_pearson(7, 7, 0.05) == 1
