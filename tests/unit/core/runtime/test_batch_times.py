"""Learned durations of batches."""

import pytest

from firstline_core.runtime.batch_times import BatchTimes, LoopTimes


@pytest.mark.parametrize("smallest", [1, 2])
def test_worthwhile_batches_grow_whatever_the_first_batch_was(smallest: int) -> None:
    times, rows = BatchTimes(), smallest
    for _ in range(8):
        times.observe(rows, 0.002 + 0.0001 * rows, now_s=0)
        rows = times.worthwhile_rows(32)
    assert rows == 32


def test_a_batch_of_no_measurable_time_is_forgotten() -> None:
    times = BatchTimes()
    for seconds in (0.0, 0.01, 0.01):
        times.observe(1, seconds, now_s=0)
    assert times.seconds(1) == 0.01


def test_batches_that_gain_nothing_stay_small() -> None:
    times = BatchTimes()
    for rows in (1, 2):
        times.observe(rows, 0.001 * rows, now_s=0)
    assert times.worthwhile_rows(32) == 1


def test_measured_times_change_what_is_worthwhile() -> None:
    times = BatchTimes()
    assert times.worthwhile_rows(4) == 2  # one unknown step
    times.expect({1: 0.01, 2: 0.01, 4: 0.01})
    assert times.worthwhile_rows(4) == 4


def test_a_declared_batch_size_is_not_exceeded() -> None:
    times = BatchTimes(batch=1)
    assert times.worthwhile_rows(32) == 1
    for rows in (1, 2, 4):
        times.observe(rows, 0.01, now_s=0)
    assert times.worthwhile_rows(32) == 1


def test_a_declared_batch_size_holds_on_the_loop_after_a_slow_batch() -> None:
    times = LoopTimes({1: 0.0001, 2: 0.0001, 4: 0.0001}, 0.0, batch=1)
    assert times.worthwhile_rows(4) == 1
    times.observe(1, 1.0, now_s=0.0)
    times.retry_if_due(100.0)
    assert times.worthwhile_rows(4) == 1
