"""What holds for every runtime, and the casts of inputs."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.runtime.base import Feeds, RowByRow, Runtime, cast_feed, fits, fixed_batch, run_in_batches
from firstline_core.types import Array, TensorSpec

DIGITS_TFLITE = Path(__file__).parents[4] / "models" / "digits" / "artefacts" / "edge_int8.tflite"
Load = Callable[[Path], Runtime]


def load_onnx(path: Path) -> Runtime:
    from firstline_core.runtime.onnx import OnnxRuntime

    return OnnxRuntime(path, providers=("CPUExecutionProvider",), threads=1)


def load_tflite(path: Path) -> Runtime:
    from firstline_core.runtime.litert import LiteRtRuntime

    return LiteRtRuntime(path, threads=1)


@pytest.fixture(params=[load_onnx, pytest.param(load_tflite, marks=pytest.mark.tflite)])
def load(request: pytest.FixtureRequest) -> Load:
    return request.param


@pytest.fixture
def runtime(load: Load, tmp_path: Path) -> Runtime:
    if load is load_tflite:
        return load(DIGITS_TFLITE)
    from bench.support.onnx_models import linear  # needs onnx, which the environment of `make tflite` does not have

    return load(linear(tmp_path / "m.onnx", np.arange(6, dtype=np.float32).reshape(2, 3), batch=2))


def output(runtime: Runtime, rows: int, seed: int = 0) -> Array:
    spec = runtime.inputs[0]
    feed = np.random.default_rng(seed).random((rows, *spec.shape[1:])).astype(np.float32)
    return runtime.run({spec.name: feed})[runtime.outputs[0].name]


def test_runs_from_several_threads(runtime: Runtime) -> None:
    expected = [output(runtime, 3, seed) for seed in range(4)]

    def work(seed: int) -> bool:
        return all(np.array_equal(output(runtime, 3, seed), expected[seed]) for _ in range(100))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_closes_twice_and_runs_no_more(runtime: Runtime) -> None:
    runtime.close()
    runtime.close()
    with pytest.raises(InferenceError, match="closed"):
        output(runtime, 1)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 64, b"TFL3" * 20, b"\x08\x07" * 50])
def test_a_file_that_is_no_model_is_refused(load: Load, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.model").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"m\.model"):
        load(tmp_path / "m.model")


def test_an_absent_file_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        load(tmp_path / "m.model")


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (np.array([[1.0, -1e6]], np.float32), np.float16, r"float16, up to 65504, but was fed values up to 1e\+06"),
        (np.array([[1e300]]), np.float32, r"takes float32, up to 3\.40282e\+38, but was fed values up to 1e\+300"),
        (np.array([[np.nan, 1e300]]), np.float32, r"up to 1e\+300"),
        (np.array([[70_000]], np.int64), np.float16, "up to 70000"),
    ],
)
def test_no_finite_value_becomes_infinite(array: Any, dtype: type, message: str) -> None:
    with pytest.raises(InvalidTensorError, match=f"'x' .*{message}"):
        cast_feed("x", array, np.dtype(dtype))


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([[65504.0, -65504.0]], np.float32), np.float16),
        (np.array([[2**24 + 1]], np.int64), np.float32),
        (np.array([[True, False]]), np.float16),
        (np.array([[np.inf, np.nan]]), np.float32),  # what a graph says, the model may hear
        (np.zeros((0, 3)), np.float32),
    ],
)
def test_lossless_casts_are_accepted(array: Any, dtype: type) -> None:
    found = cast_feed("x", array, np.dtype(dtype))
    np.testing.assert_array_equal(found, array.astype(dtype), strict=True)


class Above:
    """Gives the numbers above 1 of a list, and how many there are: no axis of rows."""

    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (-1,)), TensorSpec("n", "INT64", ()))
    ranges: Mapping[str, tuple[float, float]] = {}
    provider = "made up"

    def run(self, feeds: Feeds) -> dict[str, Array]:
        found = feeds["x"][feeds["x"] > 1]
        return {"y": found, "n": np.array(len(found))}

    def close(self) -> None: ...


def test_a_model_without_rows_gets_them() -> None:
    rows = RowByRow(Above(), ("x", "y", "n"))
    assert [spec.shape for spec in (*rows.inputs, *rows.outputs)] == [(-1, 3), (-1, -1), (-1,)]
    found = rows.run({"x": np.array([[1, 2, 3], [0, 0, 0], [4, 0, 0]], np.float32)})
    assert found["y"].tolist() == [[2, 3], [0, 0], [4, 0]]
    assert found["n"].tolist() == [2, 0, 1]
    with pytest.raises(ModelLoadError, match="no input and no output 'z' without rows"):
        RowByRow(Above(), ("z",))
    with pytest.raises(ModelLoadError, match="takes 3 rows at once in 'x'"):
        RowByRow(Above(), ("y",))


def test_batches_whose_outputs_differ_in_size_are_filled_up() -> None:
    feeds = {"x": np.array([[1, 2, 3], [0, 0, 0], [4, 0, 0]], np.float32)}
    found = run_in_batches(feeds, 1, lambda batch: {"y": batch["x"][batch["x"] > 1][None]})
    assert found["y"].tolist() == [[2, 3], [0, 0], [4, 0]]


def test_no_row_of_an_output_is_lost_unseen() -> None:
    rows = RowByRow(Above(), ("x", "n"))  # "y" has no axis of rows either, which the task finds by its shape
    assert rows.run({"x": np.array([[1, 2, 3], [4, 0, 0]], np.float32)})["y"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("shape", "fitting"),
    [((2, 4, 3), True), ((2, 5, 3), True), ((2, 4, 2), False), ((2, 4), False), ((2, 4, 3, 1), False)],
)
def test_only_free_axes_may_have_any_size(shape: tuple[int, ...], fitting: bool) -> None:
    assert fits(shape, (1, -1, 3)) == fitting


@pytest.mark.parametrize(("sizes", "batch"), [((-1, -1), None), ((-1, 4), 4), ((4, 4), 4), ((1, 1), 1)])
def test_all_inputs_have_one_batch_size(sizes: tuple[int, int], batch: int | None) -> None:
    inputs = [TensorSpec(name, "FP32", (size, 3)) for name, size in zip("ab", sizes, strict=True)]
    assert fixed_batch(inputs, Above.outputs, Path("m.onnx")) == batch


@pytest.mark.parametrize(
    ("inputs", "outputs", "fault"),
    [
        (((4, 3), (2, 3)), ((4,),), r"m.onnx: the inputs have fixed batch sizes that differ: \[2, 4\]"),
        (((4, 3), ()), ((4,),), "m.onnx: a model needs inputs with rows"),
        ((), ((4,),), "m.onnx: a model needs inputs with rows"),
        (((4, 3),), (), "a tensor as output"),
    ],
)
def test_models_without_a_batch_axis_are_refused(
    inputs: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...], fault: str
) -> None:
    specs = [[TensorSpec("x", "FP32", shape) for shape in shapes] for shapes in (inputs, outputs)]
    with pytest.raises(ModelLoadError, match=fault):
        fixed_batch(*specs, Path("m.onnx"))
