import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ConfigError
from firstline_core.routing import drift

SCORES = st.lists(st.integers(0, 30).map(lambda step: step / 30), min_size=1, max_size=200)


@given(SCORES, st.integers(2, 20))
def test_the_bins_hold_the_declared_shares(scores: list[float], bins: int) -> None:
    found = drift.histogram(scores, bins)
    assert 1 <= len(found.edges) < bins
    counts = np.bincount(drift.bins_of(scores, found.edges), minlength=len(found.shares))
    np.testing.assert_allclose(counts / len(scores), found.shares)
    assert not set(found.edges[1:]) & set(scores)  # a last digit moves no score over an edge


def test_bins_have_equal_shares() -> None:
    found = drift.histogram(np.random.default_rng(0).random(1000))
    np.testing.assert_allclose(found.shares, 0.05, atol=0.0011)
    assert drift.bins_of([math.nan, -1, 2], found.edges).tolist() == [0, 0, 19]
    assert drift.histogram([math.nan]) is None
    half = drift.histogram([math.nan, 1.0])
    assert half.shares == (0.5, 0.5)


def test_weights_give_the_shares_of_the_population() -> None:
    kept, escalated = np.full(10, 0.9), np.full(90, 0.1)  # of 100 each: a tenth of those kept was drawn
    found = drift.histogram([*kept, *escalated], weights=[10.0] * 10 + [1.0] * 90)
    assert found.shares[-1] == pytest.approx(100 / 190)


def test_the_same_shares_have_not_drifted() -> None:
    assert drift.population_stability_index([10, 20, 70], [10, 20, 70]) == 0
    assert drift.population_stability_index([1e6, 2e6, 7e6], [1e5, 2e5, 7e5]) == pytest.approx(0, abs=1e-9)


def test_two_bins_by_hand() -> None:
    expected = 0.2 * math.log(0.7 / 0.5) + -0.2 * math.log(0.3 / 0.5)
    assert drift.population_stability_index([5e8, 5e8], [7e8, 3e8]) == pytest.approx(expected)
    assert drift.population_stability_index([7e8, 3e8], [5e8, 5e8]) == pytest.approx(expected)


def test_an_empty_bin_is_no_infinite_change() -> None:
    assert 0.25 < drift.population_stability_index([100, 100], [200, 0]) < 10
    assert drift.population_stability_index([0, 0], [0, 0]) == 0


def test_chance_alone_gives_the_expected_index() -> None:
    random = np.random.default_rng(0)
    shares = np.full(10, 0.1)
    found = [
        drift.population_stability_index(random.multinomial(2500, shares), random.multinomial(500, shares))
        for _ in range(300)
    ]
    assert np.mean(found) == pytest.approx(9 * (1 / 2500 + 1 / 500), rel=0.1)


@pytest.mark.parametrize(
    ("expected", "observed"),
    [([1, 2], [1, 2, 3]), ([1], [1]), ([[1, 2]], [[1, 2]]), ([1, -1], [1, 1]), ([1, 1], [1, math.nan])],
)
def test_invalid_histograms_are_refused(expected: list[float], observed: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"histogram|Histogram"):
        drift.population_stability_index(expected, observed)


def test_other_scores_are_drift_and_chance_is_not() -> None:
    random = np.random.default_rng(1)
    reference = drift.histogram(random.random(650))
    assert reference is not None

    def index(scores: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        seen = np.bincount(drift.bins_of(scores, reference.edges), minlength=20)
        raw = drift.population_stability_index(np.array(reference.shares) * 650, seen)
        return drift.beyond_chance(raw, 20, 650, len(scores))

    same = [index(random.random(500)) for _ in range(200)]
    assert np.quantile(same, 0.95) < 0.1
    assert drift.size_word(index(random.random(500) ** 2)) == "large"
    assert drift.size_word(index(random.random(500) ** 1.5)) == "moderate"
    assert (drift.size_word(0.0), drift.size_word(0.1), drift.size_word(0.25)) == ("stable", "moderate", "large")
    assert drift.beyond_chance(1.0, 20, 650, 100) is None
