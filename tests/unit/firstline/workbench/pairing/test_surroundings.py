"""What the data tell about the models of a pair."""

import json
from pathlib import Path
from typing import Any

import pytest

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.model_file import ModelFile
from firstline.workbench.pairing.sources import open_data
from firstline.workbench.pairing.specification import PairSpec
from firstline.workbench.pairing.surroundings import look_around
from firstline.workbench.recognition.reading import Truth
from firstline_core.types import TensorSpec

_FILE = ModelFile("m.onnx", "onnx", (TensorSpec("x", "FP32", (-1, 1)),), ())


def _table(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl"


@pytest.mark.parametrize("label", ["1" + "0" * 400, "[" * 100_000], ids=["huge", "deep"])
def test_labels_that_are_no_numbers_are_classes(tmp_path: Path, label: str) -> None:
    data = open_dataset(_table(tmp_path, [{"x": 1, "label": label}]))
    assert look_around(PairSpec({}, tmp_path), data, {"full": _FILE}, ())["full"].truth == Truth("classes")


def test_column_of_labels_may_lack_some(tmp_path: Path) -> None:
    data, shown = _table(tmp_path, [{"x": 1, "kind": "cat"}, {"x": 2, "kind": None}]), list[str]()
    found = open_data(data, open_dataset, {"full": _FILE}, lists=[("cat", "dog")], out=tmp_path, show=shown.append)
    assert (found.label_column, len(shown)) == ("kind", 1)
