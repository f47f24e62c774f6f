import math

import pytest

from firstline_core.routing.quantiles import DecayedQuantiles


def test_without_observations_there_is_no_prediction() -> None:
    assert DecayedQuantiles().quantile(0.5) is None
    assert DecayedQuantiles().weight(1e9) == 0


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_invalid_durations_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        DecayedQuantiles().add(seconds, 0.0)


@pytest.mark.parametrize(("share", "seconds"), [(0.24, 0.1), (0.26, 0.2), (0.49, 0.2), (0.74, 0.4), (0.76, 0.8)])
def test_quantiles_of_four_observations(share: float, seconds: float) -> None:
    found = DecayedQuantiles(1e9, 1e9)
    for each in (0.4, 0.1, 0.8, 0.2):
        found.add(each, 0.0)
    assert found.quantile(share) == pytest.approx(seconds, rel=0.05)


def test_censored_observations_follow_kaplan_and_meier() -> None:
    found = DecayedQuantiles(1e9, 1e9)
    for seconds in (0.1, 0.1, 0.4, 0.8):
        found.add(seconds, 0.0)
    found.add(0.2, 0.0, censored=True)
    # Kaplan and Meier: 3/5 are left after 0.1, then the censored one leaves two of equal share.
    assert found.quantile(0.39) == pytest.approx(0.1, rel=0.05)
    assert found.quantile(0.6) == pytest.approx(0.4, rel=0.05)
    assert found.quantile(0.75) == pytest.approx(0.8, rel=0.05)


def test_weights_halve_by_the_count_and_by_the_clock() -> None:
    found = DecayedQuantiles(half_life_count=10, half_life_s=60)
    found.add(1.0, 0.0)
    assert found.weight(0.0) == pytest.approx(1)
    assert found.weight(60.0) == pytest.approx(0.5)
    assert found.weight(1e12) == 0
    for _ in range(1000):
        found.add(1.0, 60.0)
    assert found.weight(60.0) == pytest.approx(1 / (1 - 2**-0.1), rel=0.02)


def test_a_doubted_past_gives_way() -> None:
    found = DecayedQuantiles()
    for _ in range(100):
        found.add(1.0, 0.0)
    found.doubt(4)
    assert found.weight(0.0) == pytest.approx(4)
    for _ in range(6):
        found.add(0.1, 0.0)
    assert found.quantile(0.5) == pytest.approx(0.1, rel=0.05)
    found.doubt(100)
    assert found.weight(0.0) < 11
