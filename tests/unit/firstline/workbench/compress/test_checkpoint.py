"""Where a training is kept; that it goes on from there is told in `test_student.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firstline.workbench.compress.checkpoint import checkpoint_file


def test_each_training_has_a_place_of_its_own(tmp_path: Path) -> None:
    rows = np.arange(600 * 4, dtype=np.float32).reshape(600, 4)
    first = checkpoint_file(tmp_path, rows, [b"student", b"teacher"])
    assert checkpoint_file(tmp_path, rows.copy(order="F"), [b"student", b"teacher"]) == first
    last = rows.copy()
    last[-1, -1] += 1
    others = {
        checkpoint_file(tmp_path, last, [b"student", b"teacher"]),
        checkpoint_file(tmp_path, rows.reshape(300, 8), [b"student", b"teacher"]),
        checkpoint_file(tmp_path, rows.astype(np.float64), [b"student", b"teacher"]),
        checkpoint_file(tmp_path, rows, [b"studentteacher"]),
        checkpoint_file(tmp_path, rows, [b"teacher", b"student"]),
    }
    assert len(others - {first}) == 5
    assert first.parent == tmp_path
