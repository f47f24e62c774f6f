from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.sample_models import linear_model

from bench.support.onnx_models import float_graph
from firstline.workbench.precision import precision_of, weights_of

_DIGITS = Path(__file__).parents[4] / "models/digits/artefacts"


@pytest.mark.parametrize(("file", "precision"), [("edge.tflite", "fp32"), ("edge_int8.tflite", "int8")])
def test_tflite_precision_is_read(file: str, precision: str) -> None:
    assert precision_of(_DIGITS / file, "tflite") == precision


def test_onnx_counts_bytes_not_tensors() -> None:
    # Its centres are stored as bytes; its many small constants are floats.
    assert precision_of(_DIGITS / "full.onnx", "onnx") == "uint8"
    assert precision_of(_DIGITS / "edge.onnx", "onnx") == "fp32"


def test_constant_nodes_count_as_weights(tmp_path: Path) -> None:
    kernel = numpy_helper.from_array(np.zeros((40, 2), np.float32), "w")
    nodes = [helper.make_node("Constant", [], ["w"], value=kernel), helper.make_node("MatMul", ["x", "w"], ["y"])]
    file = float_graph(tmp_path / "m.onnx", nodes, {"x": ["n", 40]}, {"y": ["n", 2]})
    assert precision_of(file, "onnx") == "fp32"
    assert weights_of(file, "onnx")["fp32"] >= kernel.ByteSize() - 10


def test_damaged_file_has_unknown_precision(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m.onnx", pixels=4, classes=2).read_bytes()
    flat = (_DIGITS / "edge.tflite").read_bytes()
    for length in (0, 1, 7, 30, 60):
        (tmp_path / "cut").write_bytes(model[:length])
        assert precision_of(tmp_path / "cut", "onnx") in ("unknown", "fp32")
        (tmp_path / "cut").write_bytes(flat[:length])
        assert precision_of(tmp_path / "cut", "tflite") == "unknown"
    for place in range(4, len(flat), 3):
        (tmp_path / "cut").write_bytes(flat[:place] + b"\xff" + flat[place + 1 :])
        assert isinstance(precision_of(tmp_path / "cut", "tflite"), str)


def test_truncated_weights_do_not_count(tmp_path: Path) -> None:
    """A tensor that claims more bytes than there are says nothing of the file."""
    # ModelProto.graph (7) of 4 bytes: GraphProto.initializer (5) that claims 100.
    (tmp_path / "cut.onnx").write_bytes(b"\x3a\x04\x2a\x64\x10\x01")
    assert precision_of(tmp_path / "cut.onnx", "onnx") == "unknown"
