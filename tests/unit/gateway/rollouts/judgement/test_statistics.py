"""The statistics of a judgement, compared with every division of a few devices and with textbook formulas."""

import math
from itertools import combinations

import numpy as np
import pytest

from firstline_gateway.rollouts.judgement import statistics
from firstline_gateway.rollouts.judgement.statistics import ClassGroups, Groups

NAN = math.nan


def groups(
    values: list[float],
    treated: int,
    *,
    weights: list[float] | None = None,
    before: list[float] | None = None,
    name: str = "",
) -> Groups:
    """The first devices are treated."""
    count = len(values)
    return Groups(
        np.array(values),
        np.ones(count) if weights is None else np.array(weights),
        np.full(count, NAN) if before is None else np.array(before),
        np.arange(count) < treated,
        name,
    )


def p_value(classes: list[Groups], tolerance: float = 0.0, smallest: float = 1e-3) -> float:
    return statistics.p_values([ClassGroups(classes, tolerance)], smallest, np.random.default_rng(1))[0]


def share_of_divisions(values: list[float], weights: list[float], treated: int) -> float:
    """The share of all divisions whose difference of weighted means is at least the true one's."""
    every = range(len(values))

    def mean(rows: set[int]) -> float:
        return sum(values[row] * weights[row] for row in rows) / sum(weights[row] for row in rows)

    differences = [mean(set(part)) - mean(set(every) - set(part)) for part in combinations(every, treated)]
    return sum(each >= differences[0] - 1e-9 for each in differences) / len(differences)


@pytest.mark.parametrize("treated", [1, 3, 4])
@pytest.mark.parametrize("values", [[3.0, 9.0, 7.0, 1.0, 2.0, 2.0, 8.0], [5.0, 4.0, 4.0, 4.0, 0.0, 4.0, 1.0]])
def test_the_p_value_is_the_share_of_divisions(values: list[float], treated: int) -> None:
    weights = [0.5, 1.0, 0.25, 1.0, 0.75, 0.5, 1.0]
    exact = share_of_divisions(values, weights, treated)
    assert p_value([groups(values, treated, weights=weights)]) == pytest.approx(exact, abs=0.06)


def test_equal_devices_show_no_difference() -> None:
    assert p_value([groups([0.3] * 8, 4)]) == 1
    assert p_value([groups([1.5] * 4 + [1.0] * 4, 4)], 0.5) == 1


def test_the_smallest_p_value_counts_the_true_division() -> None:
    """None of 2,048 drawn divisions, four blocks, shows as much: 1 / 2,049, which is below the level that decides."""
    assert p_value([groups([1.0] * 40 + [0.0] * 40, 40)]) == 1 / 2049


def test_a_better_model_has_a_large_p_value() -> None:
    assert p_value([groups([0.0] * 4 + [1.0] * 4, 4)]) > 0.9


def test_the_worst_class_counts_in_units_of_its_spread() -> None:
    """The class with small numbers differs by more of its spread than the one with large numbers."""
    small = groups([0.02, 0.02, 0.02, 0.02, 0.0, 0.0, 0.0, 0.0], 4, name="small")
    large = groups([900.0, 100.0, 500.0, 300.0, 800.0, 200.0, 400.0, 600.0], 4, name="large")
    assert p_value([large]) > 0.3
    assert p_value([small, large]) == pytest.approx(p_value([small]), abs=0.03)
    assert p_value([small]) == pytest.approx(1 / 70, abs=0.02)


def test_a_figure_of_one_group_shows_nothing() -> None:
    assert p_value([groups([9.0, 9.0, 0.0, 0.0], 2, weights=[1.0, 1.0, 0.0, 0.0])]) == 1
    assert not ClassGroups([groups([1.0, 2.0], 1, weights=[0.0, 1.0])], 0.0).is_open


def test_a_division_without_a_reporting_device_is_no_evidence() -> None:
    """Of 15 divisions, 3 treat no reporting device, and 3 only the one that is worse; the others show less."""
    one_class = groups([1.0, 5.0, 0.0, 0.0, 5.0, 5.0], 2, weights=[1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    assert p_value([one_class], 0.0, 0.5) == pytest.approx(6 / 15, abs=0.06)


def test_a_difference_is_in_units_of_the_spread() -> None:
    """Means of 3 and 1, all devices' mean is 2; the unit is the root of the summed squares over the summed weights."""
    figure = groups([2.0, 4.0, 1.0, 1.0], 2)
    assert statistics.difference(figure, 0.0) == pytest.approx(2 / (math.sqrt(0 + 4 + 1 + 1) / 4))
    # With the tolerance of 1 subtracted from the treated, the values are 1, 3, 1, 1.
    assert statistics.difference(figure, 1.0) == pytest.approx(1 / (math.sqrt(0.25 * 3 + 2.25) / 4))
    weighted = groups([2.0, 1.0], 1, weights=[1.0, 0.5])  # the weighted mean is 5 / 3
    assert statistics.difference(weighted, 0.0) == pytest.approx(1 / (math.sqrt((1 / 3) ** 2 + (1 / 3) ** 2) / 1.5))
    assert statistics.difference(groups([3.0, 3.0], 1), 0.0) == 0


def test_the_time_before_is_regressed_out() -> None:
    """The slope is that of a weighted least-squares fit with an intercept, as `numpy.polyfit` computes it."""
    values, before = [5.0, 3.0, 8.0, 1.0, 4.0], [2.0, 1.0, 4.0, 0.0, 3.0]
    weights = [1.0, 0.5, 0.25, 1.0, 0.75]
    slope = np.polyfit(before, np.array(values) - 0.5 * (np.arange(5) < 2), 1, w=np.sqrt(weights))[0]
    centred = np.array(before) - np.average(before, weights=weights)
    expected = np.array([4.5, 2.5, 8.0, 1.0, 4.0]) - slope * centred
    found = statistics.adjusted(groups(values, 2, weights=weights, before=before), 0.5)
    np.testing.assert_allclose(found, expected)
    small = [each / 1000 for each in before]
    np.testing.assert_allclose(statistics.adjusted(groups(values, 2, weights=weights, before=small), 0.5), expected)


def test_a_past_of_fewer_than_three_devices_explains_nothing() -> None:
    values = [5.0, 3.0, 8.0, 1.0]
    for before in ([2.0, 1.0, NAN, NAN], [2.0, 2.0, 2.0, 2.0]):
        assert statistics.adjusted(groups(values, 2, before=before), 0.0).tolist() == values
    third = groups(values, 2, before=[2.0, 1.0, 3.0, NAN], weights=[1.0, 1.0, 0.0, 1.0])  # does not report the figure
    assert statistics.adjusted(third, 0.0).tolist() == values
    three = statistics.adjusted(groups(values, 2, before=[2.0, 1.0, 3.0, NAN]), 0.0)
    assert three[3] == 1.0 and three[0] == 5.0 and three[1] > 3.0 and three[2] < 8.0


def test_means_and_counts_are_of_reporting_devices() -> None:
    figure = groups([2.0, 4.0, 9.0, 1.0, 3.0], 2, weights=[1.0, 0.5, 0.0, 0.5, 0.5])
    assert figure.counts == (2, 2)
    assert figure.means == (pytest.approx(8 / 3), 2.0)


def test_the_standard_error_is_that_of_two_means() -> None:
    """Welch's: the root of the sum of variance / size of both groups."""
    figure = groups([2.0, 4.0, 9.0, 1.0, 5.0], 3)
    expected = math.sqrt(np.var([2, 4, 9], ddof=1) / 3 + np.var([1, 5], ddof=1) / 2)
    assert statistics.standard_error(figure) == pytest.approx(expected)
    assert statistics.standard_error(groups([2.0, 4.0, 9.0], 2)) == math.inf
    # Weights of 1 and 0.5: the mean is 8/3, away by 2/3 and 4/3, with shares of 2/3 and 1/3.
    weighted = groups([2.0, 4.0, 1.0, 1.0], 2, weights=[1.0, 0.5, 1.0, 1.0])
    assert statistics.standard_error(weighted) == pytest.approx(math.sqrt(2 * ((4 / 9) ** 2 + (4 / 9) ** 2)))


def test_predictions_use_normal_quantiles() -> None:
    assert statistics.spread_error(0.2, 40, 10) == pytest.approx(math.sqrt(0.04 / 40 + 0.04 / 10))
    assert statistics.spread_error(0.2, 0, 10) == statistics.spread_error(0.2, 10, 0) == math.inf
    # 1.644854 and 1.281552 are the 95 % and 90 % quantiles.
    assert statistics.smallest_detectable(0.1, 0.05) == pytest.approx(0.1 * (1.644854 + 1.281552), rel=1e-6)
    assert statistics.smallest_detectable(0.1, 0.05, 20) < math.inf
    assert statistics.smallest_detectable(0.1, 0.05, 19) == math.inf
    assert statistics.smallest_detectable(math.inf, 0.05) == math.inf


def test_divisions_are_binomial_coefficients() -> None:
    assert statistics.divisions(3, 5) == pytest.approx(math.comb(8, 3))
    assert statistics.divisions(0, 5) == statistics.divisions(5, 0) == 1
    assert statistics.divisions(10_000, 10_000) > 1e300


def test_the_levels_of_evaluations_by_hand() -> None:
    """0.01 over two stages and five figures is 0.001; half of it goes to the first eight evaluations."""
    levels = [statistics.level(0.01, stages=2, figures=5, look=look) for look in range(1, 12)]
    assert levels == pytest.approx([0.001 / 16] * 8 + [0.001 / 4, 0.001 / 12, 0.001 / 24])
