"""Options that several commands share."""

from pathlib import Path

import numpy as np
import pytest

from firstline.cli.options import DataReading
from firstline_core.processing.steps import InputSpec


def test_arrays_that_are_not_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rows.npz", carat=np.zeros((3, 1), np.float32), classes=np.array(["Fair", "Good"]))
    assert len(DataReading().open(tmp_path / "rows.npz", [InputSpec("carat", "FP32", (-1, 1))])) == 3
    assert "rows.npz holds arrays that are not used, because they do not have the rows: 'classes'" in (
        capsys.readouterr().err.replace("\n", " ")
    )
