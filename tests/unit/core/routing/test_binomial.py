import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.routing.binomial import cdf, rows_needed


@pytest.mark.parametrize("most", [5, 50, 2500, 1_000_000])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.05, 0.5, 0.97])
def test_tails_agree_with_scipy(most: int, rate: float) -> None:
    from scipy import special  # only where it is used, because it takes half a second

    random = np.random.default_rng(most)
    trials = random.integers(1, most + 1, 50)
    spread = 4 * random.normal(size=50) * np.sqrt(trials * rate * (1 - rate))
    errors = np.clip(np.round(trials * rate + spread), 0, trials).astype(int)
    np.testing.assert_allclose(
        cdf(errors, trials, rate), special.betaincc(errors + 1, trials - errors, rate), rtol=1e-9
    )


def test_no_trials_have_a_tail_of_one() -> None:
    assert cdf(0, 0, 0.5) == 1


def test_rows_needed_by_hand() -> None:
    assert rows_needed(0, 0.01, 0.05) == 299
    assert rows_needed(0, 0.05, 0.05) == 59


def test_a_rate_that_no_rows_prove_has_a_number() -> None:
    assert rows_needed(0, 1e-13, 0.05) == pytest.approx(2.9957e13, rel=1e-3)
    assert rows_needed(0, 1e-30, 0.05) == 2**62 - 1


@given(st.integers(0, 60), st.floats(0.002, 0.6), st.floats(1e-4, 0.9))
def test_rows_needed_are_the_fewest_that_suffice(errors: int, rate: float, level: float) -> None:
    rows = rows_needed(errors, rate, level)
    assert cdf(errors, rows, rate) <= level
    assert cdf(errors, rows - 1, rate) > level
