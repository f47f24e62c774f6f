"""What the data tell about the models of a pair."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.model_file import ModelFile
from firstline.workbench.pairing.sources import open_data
from firstline.workbench.pairing.specification import PairSpec
from firstline.workbench.pairing.surroundings import look_around, why_unknown
from firstline.workbench.recognition import recognise
from firstline.workbench.recognition.reading import Surroundings, Truth
from firstline_core.types import TensorSpec, object_array

_FILE = ModelFile("m.onnx", "onnx", (TensorSpec("x", "FP32", (-1, 1)),), ())


def _table(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl"


@pytest.mark.parametrize("label", ["1" + "0" * 400, "[" * 100_000], ids=["huge", "deep"])
def test_labels_that_are_no_numbers_are_classes(tmp_path: Path, label: str) -> None:
    data = open_dataset(_table(tmp_path, [{"x": 1, "label": label}]))
    assert look_around(PairSpec({}, tmp_path), data, {"full": _FILE}, ())["full"].truth == Truth("classes")


def test_unknown_model_may_answer_with_text() -> None:
    file = replace(_FILE, outputs=(TensorSpec("kind", "BYTES", (-1,)),))
    near, raw = Surroundings("tensor", columns=("x",)), {"kind": object_array([b"cat"])}
    assert recognise(file, raw, near) == []
    assert "outputs 'kind' BYTES [-1]" in why_unknown("full", file, near, raw)


def test_input_without_numbers_is_no_column() -> None:
    assert recognise(replace(_FILE, inputs=(TensorSpec("x", "FP32", (-1, 0)),)), None, Surroundings("tensor")) == []


def test_column_of_labels_may_lack_some(tmp_path: Path) -> None:
    data, shown = _table(tmp_path, [{"x": 1, "kind": "cat"}, {"x": 2, "kind": None}]), list[str]()
    found = open_data(data, open_dataset, {"full": _FILE}, lists=[("cat", "dog")], out=tmp_path, show=shown.append)
    assert (found.label_column, len(shown)) == ("kind", 1)
