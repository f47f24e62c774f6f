"""Copies take no more of an executor's time than a share, whenever they are sent and whatever they take."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from firstline_gateway.executors.dispatch.member import PROBE_SAVED_S, PROBE_SHARE, ProbeBudget


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), max_size=60))
@example([(0.0, 1.0)] * 20)
def test_probes_stay_within_their_share(asked: list[tuple[float, float]]) -> None:
    copies, now_s, taken_s, longest_s = ProbeBudget(), 0.0, 0.0, 0.0
    for pause_s, seconds in asked:
        now_s += pause_s
        if copies.may(now_s):
            now_s += seconds
            copies.took(seconds, now_s)
            taken_s, longest_s = taken_s + seconds, max(longest_s, seconds)
        assert taken_s <= PROBE_SAVED_S + PROBE_SHARE * now_s + longest_s + 1e-6


@given(st.floats(0, 100))
def test_the_probe_budget_refills(seconds: float) -> None:
    copies = ProbeBudget()
    copies.took(seconds, 0.0)
    assert copies.may(seconds / PROBE_SHARE + 1.0)
