"""Learned durations of batches."""

from __future__ import annotations

import pytest

from firstline_core.runtime.batch_times import BatchTimes


@pytest.mark.parametrize("smallest", [1, 2])
def test_worthwhile_batches_grow_whatever_the_first_batch_was(smallest: int) -> None:
    times, rows = BatchTimes(), smallest
    for _ in range(8):
        times.observe(rows, 0.002 + 0.0001 * rows, now_s=0)
        rows = times.worthwhile_rows(32)
    assert rows == 32


def test_batches_that_gain_nothing_stay_small() -> None:
    times = BatchTimes()
    for rows in (1, 2):
        times.observe(rows, 0.001 * rows, now_s=0)
    assert times.worthwhile_rows(32) == 1
