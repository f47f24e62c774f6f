import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import linear, write_graph
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.runtime.onnx import OnnxRuntime, external_data
from firstline_core.types import TensorSpec

CPU = ("CPUExecutionProvider",)
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def load(path: Path) -> OnnxRuntime:
    return OnnxRuntime(path, providers=CPU, threads=1)


def test_a_model_runs_and_describes_its_inputs(tmp_path: Path) -> None:
    runtime = load(linear(tmp_path / "m.onnx", WEIGHTS))
    x = np.array([[1, 0], [0, 1], [2, 3]], np.float32)
    np.testing.assert_allclose(runtime.run({"x": x})["logits"], x @ WEIGHTS)
    assert runtime.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    assert runtime.outputs == (TensorSpec("logits", "FP32", (-1, 3)),)
    assert runtime.provider == "CPUExecutionProvider"


def test_an_interrupted_import_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "onnxruntime")  # its parts stay imported
    x = np.array([[1, 0]], np.float32)
    np.testing.assert_allclose(load(linear(tmp_path / "m.onnx", WEIGHTS)).run({"x": x})["logits"], x @ WEIGHTS)


def test_onnx_runtime_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    model = linear(tmp_path / "m.onnx", WEIGHTS)
    load_it = "import sys; from pathlib import Path; from firstline_core.runtime.onnx import OnnxRuntime; "
    load_it += f"OnnxRuntime(Path(sys.argv[1]), providers={CPU}, threads=1)"
    # It is silent in a CI job too, so the process is started as outside of one.
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", load_it, str(model)], env=environment, check=True)
    assert list(tmp_path.iterdir()) == [model]  # a reporting process stores an identifier of the device


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (1, 5), (4, 3), (4, 4), (4, 9)])
def test_a_fixed_batch_takes_any_number_of_rows(tmp_path: Path, batch: int, rows: int) -> None:
    runtime = load(linear(tmp_path / "m.onnx", WEIGHTS, batch=batch))
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    np.testing.assert_allclose(runtime.run({"x": x})["logits"], x @ WEIGHTS, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int64])
def test_casts_to_the_declared_float(tmp_path: Path, dtype: type) -> None:
    runtime = load(linear(tmp_path / "m.onnx", WEIGHTS))
    found = runtime.run({"x": np.array([[1, 2]], dtype)})["logits"]
    np.testing.assert_allclose(found, [[6, 9, 12]])


def test_a_half_precision_model_takes_single_precision(tmp_path: Path) -> None:
    runtime = load(linear(tmp_path / "m.onnx", WEIGHTS, dtype=TensorProto.FLOAT16))
    assert runtime.inputs[0].datatype == "FP16"
    np.testing.assert_allclose(runtime.run({"x": np.array([[1, 2]], np.float32)})["logits"], [[6, 9, 12]])


def test_integers_are_cast_if_they_fit(tmp_path: Path) -> None:
    runtime = load(linear(tmp_path / "m.onnx", WEIGHTS, dtype=TensorProto.INT32))
    np.testing.assert_array_equal(runtime.run({"x": np.array([[1, 2]], np.int64)})["logits"], [[6, 9, 12]])
    with pytest.raises(
        InvalidTensorError, match="takes int32, from -2147483648 to 2147483647, but was fed values from 0"
    ):
        runtime.run({"x": np.array([[0, 2**40]], np.int64)})
    with pytest.raises(InvalidTensorError, match="takes int32, but was fed float32"):
        runtime.run({"x": np.array([[1, 2]], np.float32)})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"y": np.zeros((1, 2), np.float32)}, "takes 'x', but was fed 'y'"),
        ({}, "was fed nothing"),
        ({"x": np.zeros((1, 5), np.float32)}, r"takes \[rows, 2\], but was fed \[1, 5\]"),
        ({"x": np.zeros((2,), np.float32)}, r"was fed \[2\]"),
        ({"x": np.zeros((0, 2), np.float32)}, "no rows"),
        ({"x": np.array([[b"a", b"b"]], object)}, "takes float32, but was fed object"),
    ],
)
def test_wrong_feeds_are_named(tmp_path: Path, feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTensorError, match=message):
        load(linear(tmp_path / "m.onnx", WEIGHTS)).run(feeds)


def test_a_silent_fallback_to_the_cpu_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a build with CUDA on a machine without its libraries does: the provider is available, then quietly dropped.
    real, created = onnxruntime.InferenceSession, []

    def create(model: bytes, options: object, providers: list[str]) -> Any:
        created.append(providers)
        return real(model, options, providers=list(CPU))

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", *CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", create)
    with pytest.raises(ModelLoadError, match="asked for CUDAExecutionProvider, but ONNX Runtime fell back to CPU"):
        OnnxRuntime(linear(tmp_path / "m.onnx", WEIGHTS), providers=("CUDAExecutionProvider",), threads=1)
    assert created == [["CUDAExecutionProvider"]]


@pytest.mark.parametrize("package", ["onnxruntime", "google.protobuf"])
def test_a_missing_package_names_the_command(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelLoadError, match=r"pip install 'firstline\[edge\]'"):
        load(tmp_path / "m.onnx")


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    path = linear(tmp_path / "inside.onnx", np.ones((64, 64), np.float32))
    assert external_data(path.read_bytes()) is None
    outside = tmp_path / "outside.onnx"
    onnx.save(onnx.load(path), outside, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").is_file()
    with pytest.raises(ModelLoadError, match=r"outside\.onnx keeps weights in another file, 'weights\.bin'"):
        load(outside)


def test_weights_in_another_file_are_found_inside_of_branches(tmp_path: Path) -> None:
    hidden = numpy_helper.from_array(np.ones(4, np.float32), "hidden")
    hidden.ClearField("raw_data")
    hidden.data_location = TensorProto.EXTERNAL
    hidden.external_data.add(key="location", value="../../secret")
    constant = helper.make_node("Constant", [], ["y"], value=hidden)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    branch = helper.make_graph([constant], "branch", [], [result])
    choice = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    path = write_graph(
        tmp_path / "m.onnx", [choice], [helper.make_tensor_value_info("x", TensorProto.BOOL, [1])], [result], []
    )
    with pytest.raises(ModelLoadError, match="keeps weights in another file"):
        load(path)


def test_strings_are_outputs_in_utf_8(tmp_path: Path) -> None:
    path = write_graph(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["text"], ["y"])],
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
        [],
    )
    loaded = load(path)
    assert loaded.run({"text": np.array([b"caf\xc3\xa9", b""], object)})["y"].tolist() == [b"caf\xc3\xa9", b""]
    loaded.close()


def test_a_failing_run_is_an_inference_error(tmp_path: Path) -> None:
    path = write_graph(
        tmp_path / "m.onnx",
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.ones(3, np.float32), "table")],
    )
    with pytest.raises(InferenceError, match="ONNX Runtime fails to run this model"):
        load(path).run({"x": np.array([7], np.int64)})
