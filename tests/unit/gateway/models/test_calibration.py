from __future__ import annotations

import pytest
from support.gateway import DIGITS

from firstline_core.runtime.batch_times import BatchTimes
from firstline_core.runtime.select import RuntimeOptions
from firstline_gateway.models.calibration import BUDGET_S, LARGEST_ROWS, calibrate
from firstline_gateway.models.folder import load_repository


class Timed:
    """A model whose batches take what the test says, on a clock of its own."""

    def __init__(self, base_s: float, row_s: float, first_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.runs: list[int] = []
        self._base_s, self._row_s, self._first_s = base_s, row_s, first_s

    def run(self, rows: int) -> None:
        self.now_s += self._base_s + rows * self._row_s + (0.0 if self.runs else self._first_s)
        self.runs.append(rows)

    def calibrated(self) -> dict[int, float]:
        return calibrate(self.run, lambda: self.now_s)


def test_a_model_that_gains_by_batches_is_measured_up_to_the_largest() -> None:
    found = Timed(base_s=20e-6, row_s=1e-6).calibrated()
    assert max(found) == LARGEST_ROWS
    assert found[1] == pytest.approx(21e-6)
    assert found[64] == pytest.approx(84e-6)


def test_a_model_that_gains_nothing_is_seen_by_two_rows_and_runs_one_at_a_time() -> None:
    found = Timed(base_s=0.0, row_s=0.013).calibrated()
    assert set(found) == {1, 2}
    times = BatchTimes()
    times.expect(found)
    assert times.worthwhile_rows(LARGEST_ROWS) == 1


def test_it_takes_no_longer_than_the_budget_and_one_run() -> None:
    model = Timed(base_s=0.3, row_s=0.001)
    assert set(model.calibrated()) == {1}
    assert model.now_s == pytest.approx(2 * 0.301)
    quick = Timed(base_s=0.004, row_s=0.0)
    quick.calibrated()
    assert quick.now_s <= BUDGET_S + 0.004 * 2


def test_what_the_first_run_takes_once_is_no_measure() -> None:
    assert Timed(base_s=20e-6, row_s=0.0, first_s=1.0).calibrated()[1] == pytest.approx(20e-6)


def test_a_model_of_images_is_not_measured_since_what_decoding_takes_is_up_to_the_sender() -> None:
    (served,) = load_repository(DIGITS, RuntimeOptions())
    assert served.loaded is not None
    assert not served.loaded.batch_s
