from __future__ import annotations

import numpy as np
import pytest

from firstline_core.routing.starts import FEWEST_ROWS, cells_of, ranks, start_shares


def test_a_start_that_keeps_too_few_rows_joins_the_main_one() -> None:
    assert ranks(2500) == {125: 0.08, 500: 0.86, 1250: 0.03, 2500: 0.03}
    assert ranks(650) == {130: pytest.approx(0.94), 325: 0.03, 650: 0.03}
    assert ranks(250) == {60: pytest.approx(0.94), 125: 0.03, 250: 0.03}
    assert ranks(100) == {60: pytest.approx(0.97), 100: 0.03}
    assert ranks(60) == {60: pytest.approx(1.0)}


@pytest.mark.parametrize("rows", range(1, 4000, 7))
def test_starts_keep_enough_rows_and_share_out_one_delta(rows: int) -> None:
    assert all(min(FEWEST_ROWS, rows) <= rank <= rows for rank in ranks(rows))
    assert sum(ranks(rows).values()) == pytest.approx(1.0)
    assert all(0 < share <= 1 for share, _ in start_shares(rows))


@pytest.mark.parametrize("scale", [1.0, -1.0, 2.0**-30, 2.0**30])
def test_cells_hold_what_only_rounding_tells_apart_and_keep_the_order(scale: float) -> None:
    ones = np.array([1.0, np.float32(0.99999994), np.float32(1.0000001), 0.99999, 1.00001]) * scale
    cells = cells_of(ones)
    assert cells[0] == cells[1] == cells[2]
    assert len({*cells[[0, 3, 4]].tolist()}) == 3
    scores = np.sort(np.random.default_rng(0).normal(0, scale if scale > 0 else 1, 1000))
    assert (np.diff(cells_of(scores)) >= 0).all()
