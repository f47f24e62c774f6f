"""When work is done in lanes side by side, against placing batch after batch where each is done first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.runtime.batch_times import BatchTimes
from firstline_gateway.executors.dispatch.placement import CompletionForecast, Lane


def times(row_s: float) -> BatchTimes:
    found = BatchTimes()
    found.expect({1: row_s})
    return found


def ends_s(lanes: list[tuple[float, float]], batches: int) -> float:
    """When the last of so many batches ends, each of which goes where it is done first: (waits, takes) by lane."""
    free_s, last_s = [wait_s for wait_s, _ in lanes], 0.0
    for _ in range(batches):
        at = min(range(len(lanes)), key=lambda at: free_s[at] + lanes[at][1])
        free_s[at] += lanes[at][1]
        last_s = free_s[at]
    return last_s


def of(*lanes: tuple[float, float]) -> CompletionForecast:
    return CompletionForecast([Lane(wait_s, times(run_s)) for wait_s, run_s in lanes], 1)


def test_alike_slots_share_the_work() -> None:
    known = times(0.01)
    batches = CompletionForecast([Lane(0.02, known)] * 4, 1).of(1)
    assert batches.done(0.08) == (pytest.approx(0.02 + 0.01 + (0.08 - 3 * 0.01) / 4), 4)


def test_a_hanging_lane_does_not_count() -> None:
    batches = of((0.0, 0.01), (16.0, 0.01)).of(1)
    assert batches.done(0.05)[0] == pytest.approx(0.06)


def test_a_slow_lane_takes_part_once_it_is_done_sooner() -> None:
    batches = of((0.0, 0.01), (0.0, 0.2), (0.0, 0.2)).of(1)
    assert batches.done(0.18)[0] == pytest.approx(0.19)
    assert batches.done(0.2)[0] == batches.done(0.21)[0] == pytest.approx(0.2), "three batches end together"


def test_work_is_counted_in_the_times_of_the_most_productive_lane() -> None:
    slow, quick = times(0.2), times(0.01)
    assert CompletionForecast([Lane(0.0, slow), Lane(9.0, quick)], 1).times is quick


def test_nothing_is_predicted_for_a_model_that_never_ran() -> None:
    assert CompletionForecast([Lane(0.0, BatchTimes()), Lane(0.0, BatchTimes())], 8).of(1).done(0.0) == (0.0, 1.0)


lane = st.tuples(st.floats(0, 1), st.floats(0.01, 1))


@given(st.lists(lane, min_size=1, max_size=6), st.integers(0, 40))
def test_the_forecast_equals_placing_batch_after_batch(lanes: list[tuple[float, float]], before: int) -> None:
    """Within one batch for each lane: what is shared out is work, as if lanes ended together."""
    batches = of(*lanes).of(1)
    found_s = batches.done(before * batches.seconds)[0]
    assert found_s >= ends_s(lanes, max(1, before + 1 - len(lanes))) - 1e-9
    assert found_s <= ends_s(lanes, before + 1 + len(lanes)) + 1e-9


@given(st.lists(lane, min_size=1, max_size=6), st.floats(0, 10), st.floats(0, 10))
def test_more_work_is_done_no_sooner(lanes: list[tuple[float, float]], one_s: float, other_s: float) -> None:
    batches = of(*lanes).of(1)
    less, more = sorted((one_s, other_s))
    assert batches.done(less)[0] <= batches.done(more)[0]


@given(st.lists(lane, min_size=1, max_size=5), lane, st.floats(0, 10))
def test_an_additional_lane_delays_nothing(
    lanes: list[tuple[float, float]], another: tuple[float, float], work_s: float
) -> None:
    with_all = CompletionForecast([Lane(wait_s, times(run_s)) for wait_s, run_s in [*lanes, another]], 1)
    without = CompletionForecast(with_all.lanes[:-1], 1)
    without.times = with_all.times
    assert with_all.of(1).done(work_s)[0] <= without.of(1).done(work_s)[0] + 1e-9
