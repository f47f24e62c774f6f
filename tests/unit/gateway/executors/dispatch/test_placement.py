"""When work is done in lanes side by side, against placing batch after batch where each is done first."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.executors import SERVED, M, Timed

from firstline_core.clock import SimulatedClock
from firstline_core.runtime.batch_times import BatchTimes
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.dispatch.placement import (
    BatchForecast,
    CompletionForecast,
    Lane,
    Placement,
    PoolSnapshot,
)


def times(row_s: float) -> BatchTimes:
    found = BatchTimes()
    found.expect({1: row_s})
    return found


def ends_s(lanes: list[tuple[float, float]], batches: int) -> float:
    """When the last of `batches` batches ends, each of which goes where it is done first: (waits, takes) by lane."""
    free_s, last_s = [wait_s for wait_s, _ in lanes], 0.0
    for _ in range(batches):
        at = min(range(len(lanes)), key=lambda at: free_s[at] + lanes[at][1])
        free_s[at] += lanes[at][1]
        last_s = free_s[at]
    return last_s


def of(*lanes: tuple[float, float]) -> CompletionForecast:
    return CompletionForecast([Lane(wait_s, times(run_s)) for wait_s, run_s in lanes], 1)


def executor(name: str, seconds: dict[int, float], slots: int = 1) -> Member:
    """An executor of known times of batches, by their rows."""
    member = Member(name, Timed(SimulatedClock(), 0.0, slots), sessions=0)
    member.place(SERVED, seconds)
    return member


def test_the_example_of_the_forecast_holds() -> None:
    runner = doctest.DocTestRunner()
    for found in doctest.DocTestFinder().find(BatchForecast, globs={"BatchForecast": BatchForecast}):
        runner.run(found)
    assert runner.summarize(verbose=False) == (0, 6)


@pytest.mark.parametrize(("slowness", "rows"), [(1, 4), (5, 4), (10, None)])
def test_an_idle_executor_gets_the_rows_of_the_documented_example(slowness: int, rows: int | None) -> None:
    busy = executor("busy", {1: 0.04, 2: 0.05, 4: 0.06, 8: 0.07, 16: 0.08, 32: 0.1})
    idle = executor("idle", {each: slowness * (0.1 + 0.02 * each) for each in (1, 2, 4, 8, 16, 32)})
    busy.begin(M, 32, 0.0)
    found = PoolSnapshot([busy, idle], 0.0).place(M, 320, 32)
    assert isinstance(found, Placement)
    assert (found.member, found.most_rows, found.is_free) == (busy, 32, False)
    assert (found.idle.most_rows if found.idle else None) == rows


@pytest.mark.parametrize(("four_s", "rows"), [(0.012, 4), (0.0195, 8)])
def test_free_slots_share_a_backlog_as_in_the_documented_example(four_s: float, rows: int) -> None:
    two_slots = executor("two", {1: four_s - 0.002, 2: four_s - 0.001, 4: four_s, 8: 0.02}, slots=2)
    found = PoolSnapshot([two_slots], 0.0).place(M, 8, 8, may_share_slots=True)
    assert isinstance(found, Placement)
    assert (found.most_rows, found.is_free) == (rows, True)


def test_alike_slots_share_the_work() -> None:
    measured = times(0.01)
    batches = CompletionForecast([Lane(0.02, measured)] * 4, 1).of(1)
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
def test_new_lane_delays_nothing(lanes: list[tuple[float, float]], another: tuple[float, float], work_s: float) -> None:
    with_all = CompletionForecast([Lane(wait_s, times(run_s)) for wait_s, run_s in [*lanes, another]], 1)
    without = CompletionForecast(with_all.lanes[:-1], 1)
    without.times = with_all.times
    assert with_all.of(1).done(work_s)[0] <= without.of(1).done(work_s)[0] + 1e-9
