"""Streaming quantiles: close to the truth, quick to learn, bounded, and never without sense."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.routing.quantiles import RELATIVE_ERROR, DecayedQuantiles
from firstline_core.routing.timing import TimesBySize

durations = st.floats(0, 1e9, allow_nan=False)
shares = st.floats(0.01, 0.99)
observations = st.lists(st.tuples(durations, st.floats(0, 1e6), st.booleans()), min_size=1, max_size=200)


def remembering() -> DecayedQuantiles:
    return DecayedQuantiles(half_life_count=1e9, half_life_s=1e9)


@given(st.lists(st.floats(1e-4, 300), min_size=1, max_size=300), shares)
def test_within_the_relative_error_of_the_true_quantile(values: list[float], share: float) -> None:
    found = remembering()
    for value in values:
        found.add(value, 0.0)
    ordered = sorted(values)
    rank = share * len(values)
    # One rank to either side: how to count a share of a few is a matter of taste, and weights are floats.
    low, high = ordered[max(0, math.ceil(rank) - 2)], ordered[min(len(values) - 1, math.ceil(rank))]
    got = found.quantile(share)
    assert low * (1 - RELATIVE_ERROR) * 0.999 <= got <= high * (1 + RELATIVE_ERROR) * 1.001


@given(observations, shares)
def test_predictions_are_finite_and_bounded(seen: list[tuple[float, float, bool]], share: float) -> None:
    found, by_size = DecayedQuantiles(), TimesBySize()
    for position, (seconds, now_s, censored) in enumerate(seen):
        found.add(seconds, now_s, censored=censored)
        by_size.add(position * 1000, seconds, now_s, ahead_bytes=position % 7 * 5000, censored=censored)
        for got in (found.quantile(share), by_size.quantile(10**position % 10**9, share, position * 10**6)):
            assert got is not None and math.isfinite(got) and got >= 0
        assert 0 < found.weight(now_s) <= 47.2
        assert 5e-5 < (found.quantile(share) or 0) < 400  # whatever was added: the number of bins is limited


payloads = st.integers(0, 1 << 30)


@given(
    st.lists(st.tuples(payloads, payloads, st.floats(0, 1e6)), min_size=1, max_size=200),
    st.lists(payloads, min_size=2, max_size=5),
    shares,
)
def test_predictions_are_monotone_in_size(seen: list[tuple[int, int, float]], sizes: list[int], share: float) -> None:
    found = TimesBySize()
    for count, (size_bytes, ahead_bytes, seconds) in enumerate(seen):
        found.add(size_bytes, seconds, float(count), ahead_bytes=ahead_bytes)
    for less, more in pairwise(sorted(sizes)):
        assert (found.quantile(less, share) or 0) <= (found.quantile(more, share) or 0)
        assert (found.quantile(7, share, less) or 0) <= (found.quantile(7, share, more) or 0)


@given(observations, st.lists(shares, min_size=2, max_size=5))
def test_a_larger_share_takes_no_less(seen: list[tuple[float, float, bool]], shares: list[float]) -> None:
    found = DecayedQuantiles()
    for seconds, now_s, censored in seen:
        found.add(seconds, now_s, censored=censored)
    got = [found.quantile(share) or 0.0 for share in sorted(shares)]
    assert all(less <= more for less, more in pairwise(got))


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_learned_quickly(seed: int) -> None:
    rng = random.Random(seed)
    found = DecayedQuantiles()

    def until_near(level_s: float) -> int:
        for count in range(1000):
            found.add(level_s * rng.lognormvariate(0, 0.1), 0.0)
            near = level_s * 0.9 <= (found.quantile(0.95) or 0.0) <= level_s * 1.4
            if near:
                return count + 1
        return 1000

    for _ in range(300):
        found.add(0.02 * rng.lognormvariate(0, 0.1), 0.0)
    assert until_near(0.2) <= 5
    for _ in range(300):
        found.add(0.2 * rng.lognormvariate(0, 0.1), 0.0)
    assert until_near(0.02) <= 160


@given(st.floats(1e-3, 100), st.integers(2, 50), st.integers(1, 50))
def test_timeouts_are_lower_bounds(waited_s: float, in_vain: int, answered: int) -> None:
    found = remembering()
    for _ in range(answered):
        found.add(waited_s / 10, 0.0)
    for _ in range(in_vain):
        found.add(waited_s, 0.0, censored=True)
    if in_vain > 0.06 * (in_vain + answered):
        assert (found.quantile(0.95) or 0.0) > waited_s
