"""What Olive is given, and what is told of what it made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hardware import olive
from hardware.compress import Record, Technique

from firstline.workbench.compress.compression import Promise
from firstline.workbench.compress.judge import Figures

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


def test_what_each_made_is_told_beside_the_source() -> None:
    source, theirs = Figures("edge", 0.9, 2.0, 1000), Figures("edge-olive-fp16", 0.9, 1.0, 500)
    record = Record(
        "edge",
        Promise(0.05, 0.05, "disagreement"),
        (50, 20, 30),
        (source,),
        (
            Technique("olive-fp16", theirs, True, (), {}),
            Technique("olive-dynamic-int8", None, False, ("olive run ended with 1",), {}),
        ),
    )
    beside = olive.Beside(record, {"olive-fp16": 31.26})
    found = {one.figure: one.value for one in olive.figures({"pair": beside}, olive.Installed(5000, 100))}
    assert found["pair: olive-fp16: times faster"] == 2.0
    assert found["pair: olive-fp16: times smaller"] == 2.0
    assert found["pair: olive-fp16: to make it"] == 31.3
    assert found["Olive installed"] == 5000
    assert not any("olive-dynamic-int8" in name for name in found)
