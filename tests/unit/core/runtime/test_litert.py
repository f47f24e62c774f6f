import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from firstline_core.errors import InvalidTensorError, ModelLoadError
from firstline_core.runtime import litert
from firstline_core.runtime.litert import LiteRtRuntime

pytestmark = pytest.mark.tflite

ARTEFACTS = Path(__file__).parents[4] / "models" / "digits" / "artefacts"
STATE = Path(__file__).parents[3] / "data" / "state"
FLOAT, INT8 = ARTEFACTS / "edge.tflite", ARTEFACTS / "edge_int8.tflite"


def load(path: Path) -> LiteRtRuntime:
    return LiteRtRuntime(path, threads=1)


def digits(rows: int, runtime: LiteRtRuntime, seed: int = 0) -> dict[str, Any]:
    spec = runtime.inputs[0]
    return {spec.name: np.random.default_rng(seed).random((rows, *spec.shape[1:])).astype(np.float32)}


def outputs(runtime: LiteRtRuntime, feeds: dict[str, Any]) -> Any:
    return runtime.run(feeds)[runtime.outputs[0].name]


@pytest.mark.parametrize("path", [FLOAT, INT8])
def test_callers_see_real_values_of_any_number_of_rows(path: Path) -> None:
    runtime = load(path)
    assert runtime.inputs[0].datatype == runtime.outputs[0].datatype == "FP32"
    assert runtime.provider in ("tflite/litert", "tflite/tflite-runtime")
    feeds = digits(5, runtime)
    together = outputs(runtime, feeds)
    assert together.shape == (5, 10)
    assert together.dtype == np.float32
    name = runtime.inputs[0].name
    one_by_one = np.concatenate([outputs(runtime, {name: feeds[name][i : i + 1]}) for i in range(5)])
    np.testing.assert_array_equal(together, one_by_one)


def test_int8_outputs_are_close_to_float_outputs() -> None:
    floats, ints = load(FLOAT), load(INT8)
    feeds = digits(50, floats)
    array = next(iter(feeds.values()))
    exact, rounded = outputs(floats, feeds), outputs(ints, {ints.inputs[0].name: array})
    assert (exact.argmax(axis=1) == rounded.argmax(axis=1)).mean() > 0.8
    assert np.abs(exact - rounded).max() < 0.1 * np.ptp(exact)


@pytest.mark.shared_data
def test_int8_inputs_are_scaled_as_declared(shared_data: Path) -> None:
    """int8 = pixel - 128 and probability = (q + 128) / 256, by the models' card."""
    path = shared_data / "cifar10-cascade" / "models" / "mlperf_resnet8_int8.tflite"
    runtime = load(path)
    pixels = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    interpreter, _ = litert._build(path.read_bytes(), path, 1)
    feed, out = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    assert runtime.ranges == {runtime.inputs[0].name: (0, 255)}
    for row, found in zip(pixels, outputs(runtime, {runtime.inputs[0].name: pixels}), strict=True):
        interpreter.set_tensor(feed, (row.astype(np.int16) - 128).astype(np.int8)[None])
        interpreter.invoke()
        np.testing.assert_array_equal(found, (interpreter.get_tensor(out)[0].astype(np.float32) + 128) / 256)
    as_floats = outputs(runtime, {runtime.inputs[0].name: pixels.astype(np.float32)})
    np.testing.assert_array_equal(as_floats, outputs(runtime, {runtime.inputs[0].name: pixels}))


@pytest.mark.shared_data
def test_a_uint8_model_takes_real_values_and_no_bytes(shared_data: Path) -> None:
    """Its scale is 1/128 and its zero point 128: the real values are (pixel - 128) / 128, whatever carries them."""
    path = shared_data / "imagenet-cascade" / "models" / "mobilenet_v1_0.25_128_quant.tflite"
    runtime = load(path)
    name = runtime.inputs[0].name
    assert runtime.ranges == {name: (-1, 127 / 128)}
    pixels = np.random.default_rng(2).integers(0, 256, (2, 128, 128, 3), dtype=np.uint8)
    found = outputs(runtime, {name: (pixels.astype(np.float32) - 128) / 128})
    interpreter, _ = litert._build(path.read_bytes(), path, 1)
    feed, out = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    for row, answer in zip(pixels, found, strict=True):
        interpreter.set_tensor(feed, row[None])
        interpreter.invoke()
        np.testing.assert_array_equal(answer, interpreter.get_tensor(out)[0].astype(np.float32) / 256)
    # 0 and 1 are real values too: in the middle and at the upper end.
    np.testing.assert_array_equal(
        outputs(runtime, {name: np.minimum(pixels, 1)}),
        outputs(runtime, {name: np.minimum(pixels, 1).astype(np.float32)}),
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, np.float64])
def test_a_value_means_the_same_in_every_dtype(dtype: type) -> None:
    """There is no dtype that is taken for stored values, the model's own least of all."""
    runtime = load(INT8)
    spec = runtime.inputs[0]
    assert runtime.ranges[spec.name] == pytest.approx((0, 1), abs=1e-6)
    ones = np.random.default_rng(5).integers(0, 2, (3, *spec.shape[1:]))
    np.testing.assert_array_equal(
        outputs(runtime, {spec.name: ones.astype(dtype)}), outputs(runtime, {spec.name: ones.astype(np.float32)})
    )


def test_a_float_model_has_no_range() -> None:
    assert load(FLOAT).ranges == {}


def test_values_outside_the_quantised_range_are_clipped() -> None:
    runtime = load(INT8)
    spec = runtime.inputs[0]
    huge, limit = (np.full((1, *spec.shape[1:]), value, np.float32) for value in (1e6, 1e3))
    np.testing.assert_array_equal(outputs(runtime, {spec.name: huge}), outputs(runtime, {spec.name: limit}))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_nan_is_no_integer(bad: float) -> None:
    runtime = load(INT8)
    feeds = {name: array.astype(np.float64) for name, array in digits(2, runtime).items()}
    feeds[runtime.inputs[0].name].flat[3] = bad
    with pytest.raises(InvalidTensorError, match="NaN, infinity or more"):
        runtime.run(feeds)


def test_wrong_feeds_are_named() -> None:
    runtime = load(FLOAT)
    name = runtime.inputs[0].name
    with pytest.raises(InvalidTensorError, match=f"'{name}' takes .* but was fed"):
        runtime.run({name: np.zeros((1, 3), np.float32)})
    with pytest.raises(InvalidTensorError, match="was fed 'other'"):
        runtime.run({"other": np.zeros((1, 64), np.float32)})


def test_answers_do_not_change_when_the_model_runs_again() -> None:
    runtime = load(FLOAT)
    first = outputs(runtime, digits(1, runtime, seed=0))
    expected = first.copy()
    outputs(runtime, digits(1, runtime, seed=1))
    np.testing.assert_array_equal(first, expected)
    first[:] = 0  # and are the caller's own
    np.testing.assert_array_equal(outputs(runtime, digits(1, runtime, seed=0)), expected)


def test_variables_carry_nothing_from_one_row_to_the_next() -> None:
    runtime = load(STATE / "trained_lstm.tflite")
    (name,) = (spec.name for spec in runtime.inputs)
    nine, eight = (
        np.asarray(Image.open(STATE / f"sample{digit}.png"), np.float32).reshape(1, 28, 28) / 255 for digit in (9, 8)
    )
    alone = outputs(runtime, {name: nine})
    assert (alone.argmax(), float(alone.max())) == (9, pytest.approx(0.9946, abs=1e-3))
    outputs(runtime, {name: eight})
    np.testing.assert_array_equal(outputs(runtime, {name: nine}), alone)
    together = outputs(runtime, {name: np.concatenate([eight, nine, eight, nine])})
    np.testing.assert_array_equal(together[[1, 3]], np.repeat(alone, 2, axis=0))


def test_a_model_of_several_signatures_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="has the signatures 'encode', 'decode'; export it with one of them"):
        load(STATE / "two_signatures.tflite")


def _module_that_fails(name: str) -> ModuleType:
    module = ModuleType(name)

    def fail(**_: object) -> None:
        raise ValueError("numpy.core.multiarray failed to import")

    module.Interpreter = fail
    return module


def test_an_interpreter_that_does_not_build_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    working = LiteRtRuntime(FLOAT, threads=1).provider.removeprefix("tflite/")
    other = next(name for name in litert._MODULES if name != working)
    monkeypatch.setattr(litert, "_MODULES", {other: "broken_interpreter", working: litert._MODULES[working]})
    monkeypatch.setitem(sys.modules, "broken_interpreter", _module_that_fails("broken_interpreter"))
    assert load(FLOAT).provider == f"tflite/{working}"


def test_without_an_interpreter_every_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert, "_MODULES", {"litert": "no_such_interpreter", "tflite-runtime": "broken_interpreter"})
    monkeypatch.setitem(sys.modules, "broken_interpreter", _module_that_fails("broken_interpreter"))
    with pytest.raises(ModelLoadError, match=r"litert: No module.*tflite-runtime: numpy.*'firstline\[litert\]'"):
        load(FLOAT)
