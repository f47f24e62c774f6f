"""Where a training is kept; that it goes on from there is told in `test_student.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firstline.workbench.compress.checkpoint import place_of


def test_each_training_has_a_place_of_its_own(tmp_path: Path) -> None:
    rows = np.arange(600 * 4, dtype=np.float32).reshape(600, 4)
    first = place_of(tmp_path, rows, [b"student", b"teacher"])
    assert place_of(tmp_path, rows.copy(order="F"), [b"student", b"teacher"]) == first
    last = rows.copy()
    last[-1, -1] += 1
    others = {
        place_of(tmp_path, last, [b"student", b"teacher"]),
        place_of(tmp_path, rows.reshape(300, 8), [b"student", b"teacher"]),
        place_of(tmp_path, rows.astype(np.float64), [b"student", b"teacher"]),
        place_of(tmp_path, rows, [b"studentteacher"]),
        place_of(tmp_path, rows, [b"teacher", b"student"]),
    }
    assert len(others - {first}) == 5
    assert first.parent == tmp_path
