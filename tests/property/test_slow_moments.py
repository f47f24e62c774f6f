"""The order in which queries were slow, stored in a byte each and replayed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.profile.profile import MOST_RANKS, SlowMoments, distribution, slow_moments

QUERIES = st.lists(st.tuples(st.floats(1e-6, 1.0), st.booleans()), min_size=1, max_size=300)


@given(QUERIES, st.floats(1e-3, 100.0))
def test_each_query_has_its_rank_among_its_kind(queries: list[tuple[float, bool]], span_s: float) -> None:
    times, waited = map(list, zip(*queries, strict=True))
    found = slow_moments(times, waited, span_s)
    assert found.span_ms == pytest.approx(1000 * span_s, rel=1e-4)
    assert len(found.ranks) == len(times)
    for kind in (False, True):
        mine = [(took, rank) for (took, had_to), rank in zip(queries, found.ranks, strict=True) if had_to == kind]
        for took, rank in mine:
            assert all(rank <= other for longer, other in mine if longer > took)


@given(st.integers(MOST_RANKS, 5 * MOST_RANKS))
def test_many_queries_are_thinned_evenly(queries: int) -> None:
    found = slow_moments(np.linspace(0.1, 0.2, queries), [False] * queries, 1.0)
    assert MOST_RANKS / 2 < len(found.ranks) <= MOST_RANKS
    assert list(found.ranks) == sorted(found.ranks)


@given(st.binary(min_size=1, max_size=50), st.floats(0.0, 1e4), st.integers(0, 2**32 - 1))
def test_quantile_shares_are_between_0_and_1(ranks: bytes, span_ms: float, seed: int) -> None:
    found = SlowMoments(span_ms, ranks).shares(np.linspace(0, 1e5, 64), np.random.default_rng(seed))
    assert ((found >= 0) & (found < 1)).all()


def test_all_moments_together_draw_the_measured_times() -> None:
    random = np.random.default_rng(5)
    times = random.lognormal(-7, 0.5, 3_000)
    at_ms = np.linspace(0, 1000 * 1.0, 30_000, endpoint=False)
    drawn = distribution(times).at(slow_moments(times, [True] * 3_000, 1.0).shares(at_ms, random))
    assert np.quantile(drawn, [0.1, 0.5, 0.9, 0.99]) == pytest.approx(
        1000 * np.quantile(times, [0.1, 0.5, 0.9, 0.99]), rel=0.03
    )


def test_a_slow_moment_is_slow_again() -> None:
    times = np.where(np.arange(1_000) < 500, 0.001, 0.002)
    luck = slow_moments(times, [False] * 1_000, 1.0).shares(np.arange(1_000.0), np.random.default_rng(1)) > 0.5
    assert np.count_nonzero(luck[1:] != luck[:-1]) < 30
    assert np.count_nonzero(luck) == pytest.approx(500, abs=10)


@given(st.integers(0, 2**32 - 1))
def test_simultaneous_queries_share_the_moment_not_one_rank(seed: int) -> None:
    random = np.random.default_rng(seed)
    luck = slow_moments(random.exponential(size=1_000), [True] * 1_000, 1.0).shares(np.full(400, 300.0), random)
    assert luck.std() > 0.1
