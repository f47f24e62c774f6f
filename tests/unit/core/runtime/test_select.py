import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from bench.support.onnx_models import linear
from firstline_core.errors import ConfigError, ModelLoadError
from firstline_core.runtime.base import RuntimeName
from firstline_core.runtime.litert import LiteRtRuntime
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RUNTIMES, RuntimeOptions, check_options, load_runtime

DIGITS_TFLITE = Path(__file__).parents[4] / "models" / "digits" / "artefacts" / "edge.tflite"


def test_each_runtime_of_a_manifest_has_its_row() -> None:
    assert tuple(RUNTIMES) == get_args(RuntimeName)


def test_the_declared_runtime_loads_the_file(tmp_path: Path) -> None:
    odd = linear(tmp_path / "model.bin", np.ones((2, 2), np.float32))
    assert isinstance(load_runtime(odd, "onnx", RuntimeOptions()), OnnxRuntime)
    assert isinstance(load_runtime(DIGITS_TFLITE, "tflite", RuntimeOptions(threads=2)), LiteRtRuntime)


def test_a_file_of_the_other_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not an ONNX model"):
        load_runtime(DIGITS_TFLITE, "onnx", RuntimeOptions())
    with pytest.raises(ModelLoadError, match="not a TFLite model"):
        load_runtime(linear(tmp_path / "m.onnx", np.ones((2, 2), np.float32)), "tflite", RuntimeOptions())


@pytest.mark.parametrize(
    ("providers", "message"),
    [
        (
            ("NoSuchExecutionProvider", "CPUExecutionProvider"),
            "names NoSuchExecutionProvider, but .* has: .*CPUExecutionProvider",
        ),
        ((), "names no execution provider"),
    ],
)
def test_an_unknown_provider_is_a_wrong_setting(tmp_path: Path, providers: tuple[str, ...], message: str) -> None:
    path = linear(tmp_path / "m.onnx", np.ones((2, 2), np.float32))
    with pytest.raises(ModelLoadError, match=message):
        load_runtime(path, "onnx", RuntimeOptions(providers=providers))
    with pytest.raises(ConfigError, match=rf"models\.providers {message}"):
        check_options(RuntimeOptions(providers=providers), "models.providers")


def test_the_cpu_needs_no_onnxruntime_and_another_provider_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    check_options(RuntimeOptions(), "models.providers")
    with pytest.raises(ConfigError, match=r"names CUDAExecutionProvider, but .* cannot be imported"):
        check_options(RuntimeOptions(providers=("CUDAExecutionProvider",)), "models.providers")
