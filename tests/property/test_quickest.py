"""Properties of the choice between ways to run one model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firstline_core.planning.plan import quickest

WAYS = st.lists(st.tuples(st.floats(0.001, 1e4), st.integers(0, 64)), min_size=1, max_size=12)


@given(WAYS)
def test_the_choice_is_nearly_fastest_with_the_fewest_threads(ways: list[tuple[float, int]]) -> None:
    ms, threads = quickest(ways, lambda way: way)
    least_ms = min(each for each, _ in ways)
    assert ms <= 1.05 * least_ms
    assert all((threads or 1024) <= (other or 1024) for each, other in ways if each <= 1.05 * least_ms)


@given(WAYS)
def test_the_order_makes_no_difference(ways: list[tuple[float, int]]) -> None:
    assert quickest(ways, lambda way: way) == quickest(ways[::-1], lambda way: way)
