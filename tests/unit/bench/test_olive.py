"""What Olive is given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hardware import olive

_EDGE = Path(__file__).parents[3] / "models/digits/bundle/edge-onnx.onnx"


def test_olive_reads_the_same_rows_from_files(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).uniform(0, 1, (5, 8, 8, 1)).astype(np.float32)
    said = olive._config(olive.PASSES["olive-static-int8-per-channel"], _EDGE, rows, tmp_path)
    json.dumps(said)  # it is written as JSON
    (data,) = said["data_configs"]
    params = data["load_dataset_config"]
    assert params["input_shapes"] == [[1, 8, 8, 1]]
    files = sorted((tmp_path / "rows" / params["input_names"][0]).iterdir())
    read = np.stack([np.fromfile(file, np.float32).reshape(8, 8, 1) for file in files])
    assert np.array_equal(read, rows)
    only = said["passes"]["only"]
    assert (only["per_channel"], only["data_config"]) == (True, data["name"])
    assert not (tmp_path / data["name"]).exists()  # Olive would take it for a file, and refuse its name
    dynamic = olive._config(olive.PASSES["olive-dynamic-int8"], _EDGE, rows, tmp_path / "more")
    assert "data_config" not in dynamic["passes"]["only"]
