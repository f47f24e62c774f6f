"""The bound of what a candidate loses: sure at any number of rows, and of several candidates together."""

from __future__ import annotations

from functools import cache
from math import lgamma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline.workbench.compress.judge import loss, most_lost

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_LEVEL = 0.1


@cache
def _bounds(rows: int) -> tuple[Floats, Floats]:
    """(outcomes, 2) of rows lost and won, and (outcomes,) bounds: all that can come out of so many rows."""
    outcomes = [(lost, won) for lost in range(rows + 1) for won in range(rows + 1 - lost)]
    return np.array(outcomes, float), np.array([most_lost(*outcome, rows, _LEVEL) for outcome in outcomes])


def _missing(rows: int, loses: float, wins: float) -> float:
    """How likely the bound lies below the true loss, by all that can come out."""
    outcomes, bounds = _bounds(rows)
    missed = outcomes[bounds < loses - wins - 1e-9]
    counts = np.column_stack([missed, rows - missed.sum(axis=1)])
    logs = np.array([lgamma(rows + 1) - sum(lgamma(count + 1) for count in row) for row in counts])
    shares = np.array([loses, wins, 1 - loses - wins])
    powers = np.prod(np.where(counts == 0, 1.0, shares**counts), axis=1)
    return float((np.exp(logs) * powers).sum())


@given(st.sampled_from([1, 6, 14]), st.floats(0, 1), st.floats(0, 1))
def test_the_bound_fails_as_rarely_as_stated(rows: int, loses: float, share: float) -> None:
    assert _missing(rows, loses, share * (1 - loses)) <= _LEVEL + 1e-9


def test_the_observed_loss_alone_is_too_low_half_of_the_time() -> None:
    random = np.random.default_rng(0)
    counts = random.multinomial(1000, [0.03, 0.02, 0.95], 60)
    truth = 0.01
    seen = np.array([(lost - won) / 1000 for lost, won, _ in counts])
    bounds = np.array([most_lost(int(lost), int(won), 1000, 0.05) for lost, won, _ in counts])
    assert 0.3 < (seen < truth).mean() < 0.7
    assert (bounds < truth).mean() <= 0.05
    assert bounds.mean() < 0.035  # and it is no idle one


@given(
    st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, 3), min_size=n, max_size=n)))
)
def test_only_rows_with_one_right_model_count(drawn: tuple[int, list[int]]) -> None:
    rows, kinds = drawn
    each = np.array(kinds)
    found = loss((each & 1) > 0, (each & 2) > 0, delta=0.05)
    assert (found.lost, found.won, found.rows) == (kinds.count(2), kinds.count(1), rows)
    assert found.seen == pytest.approx(((each & 2) > 0).mean() - ((each & 1) > 0).mean())
    assert found.seen <= found.at_most <= 1


def test_the_bound_falls_with_rows_and_rises_with_candidates() -> None:
    same = {rows: np.ones(rows, bool) for rows in (100, 1000)}
    few, many = (loss(right, right, delta=0.05) for right in same.values())
    assert (few.seen, many.seen) == (0, 0)
    assert few.at_most == pytest.approx(1 - 0.025 ** (1 / 100), rel=1e-6)  # as no error in so many rows says
    assert many.at_most < few.at_most < loss(same[100], same[100], delta=0.05, among=4).at_most
    assert loss(same[100], same[100], delta=0.05, among=4).delta == 0.05
