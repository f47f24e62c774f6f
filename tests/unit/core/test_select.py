from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.onnx_models import linear

from firstline_core.errors import ModelLoadError
from firstline_core.runtime.litert import LiteRtRuntime
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions, load_runtime

DIGITS_TFLITE = Path(__file__).parents[3] / "models" / "digits" / "artefacts" / "edge.tflite"


def test_loads_by_the_declared_runtime_whatever_the_file_is_called(tmp_path: Path) -> None:
    odd = linear(tmp_path / "model.bin", np.ones((2, 2), np.float32))
    assert isinstance(load_runtime(odd, "onnx", RuntimeOptions()), OnnxRuntime)
    assert isinstance(load_runtime(DIGITS_TFLITE, "tflite", RuntimeOptions(threads=2)), LiteRtRuntime)


def test_a_file_of_the_other_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not an ONNX model"):
        load_runtime(DIGITS_TFLITE, "onnx", RuntimeOptions())
    with pytest.raises(ModelLoadError, match="no TFLite interpreter loads this model"):
        load_runtime(linear(tmp_path / "m.onnx", np.ones((2, 2), np.float32)), "tflite", RuntimeOptions())


def test_options_reach_onnx_runtime(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", np.ones((2, 2), np.float32))
    with pytest.raises(ModelLoadError, match="NoSuchExecutionProvider"):
        load_runtime(path, "onnx", RuntimeOptions(providers=("NoSuchExecutionProvider",)))
