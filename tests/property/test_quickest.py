"""Properties of the choice between ways to run one model."""

from hypothesis import given
from hypothesis import strategies as st
from support.profiles import point

from firstline_core.planning.plan import quickest
from firstline_core.profile.profile import Point

TIMES_MS = st.floats(1, 1.1) | st.floats(0.001, 1e4)  # many are nearly equal
POINTS = st.lists(st.builds(point, TIMES_MS, threads=st.integers(0, 4)), min_size=1, max_size=12)


@given(POINTS)
def test_the_choice_is_nearly_fastest_with_the_fewest_threads(points: list[Point]) -> None:
    chosen = quickest(points)
    near_ms = 1.05 * min(each.query.p50_ms for each in points)
    assert chosen.query.p50_ms <= near_ms
    fewest = min(each.key.threads or 1024 for each in points if each.query.p50_ms <= near_ms)
    assert (chosen.key.threads or 1024) == fewest


@given(POINTS)
def test_the_order_makes_no_difference(points: list[Point]) -> None:
    assert quickest(points) == quickest(points[::-1])
