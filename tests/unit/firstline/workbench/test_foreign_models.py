"""Model files as exporters write them: datatypes, names and axes that a bundle takes, or refuses with a remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import write_graph
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import BundleSpec, ModelSpec
from firstline.workbench.step_syntax import parse_postprocess
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES

WEIGHTS = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2], [0, 0, 0]], np.float32)
LABELS = ("a", "b", "c")


def graph(path: Path, nodes: list[Any], input_type: tuple[int, Any], found: list[tuple[str, int, Any]]) -> Path:
    """A model with the input x and these outputs, by name, type and shape; `w` are its weights."""
    outputs = [helper.make_tensor_value_info(*output) for output in found]
    inputs = [helper.make_tensor_value_info("x", *input_type)]
    return write_graph(path, nodes, inputs, outputs, [numpy_helper.from_array(WEIGHTS, "w")])


def cast(source: str, target: str, to: int) -> Any:
    return helper.make_node("Cast", [source], [target], to=to)


def created(file: Path, folder: Path, **fields: Any) -> tuple[Bundle, LoadedModel]:
    spec = ModelSpec(file, postprocess=parse_postprocess("softmax"), **fields)
    bundle = create_bundle(BundleSpec("m", 1, LABELS, (), full=spec), folder / "bundle")
    return bundle, load_model(bundle, bundle.manifest.models[0], RuntimeOptions())


def half(path: Path) -> Path:
    nodes = [cast("x", "f", TensorProto.FLOAT), helper.make_node("MatMul", ["f", "w"], ["m"])]
    nodes += [cast("m", "y", TensorProto.FLOAT16)]
    return graph(path, nodes, (TensorProto.FLOAT16, ["n", 4]), [("y", TensorProto.FLOAT16, ["n", 3])])


def eight_bits(path: Path) -> Path:
    nodes = [cast("x", "f", TensorProto.FLOAT), helper.make_node("MatMul", ["f", "w"], ["m"])]
    nodes += [cast("m", "y", TensorProto.INT8)]
    return graph(path, nodes, (TensorProto.INT8, ["n", 4]), [("y", TensorProto.INT8, ["n", 3])])


@pytest.mark.parametrize(("make", "datatype"), [(half, "FP16"), (eight_bits, "INT8")])
def test_narrow_numbers_are_taken_and_returned_as_probabilities(tmp_path: Path, make: Any, datatype: str) -> None:
    bundle, loaded = created(make(tmp_path / "m.onnx"), tmp_path)
    assert bundle.manifest.inputs == (InputSpec("x", datatype, (-1, 4)),)
    dtypes = (np.int16, np.int64) if datatype == "INT8" else (np.float16, np.float32, np.float64, np.int64)
    for dtype in dtypes:
        found = loaded.predict({"x": np.array([[0, 1, 0, 7]], dtype)}).outputs[PROBABILITIES]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, [np.exp([0, 2, 0]) / np.exp([0, 2, 0]).sum()], rtol=1e-3)
    beyond = np.array([[0, 1e5, 0, 0]]).astype(np.int64 if datatype == "INT8" else np.float64)
    with pytest.raises(InvalidTensorError, match="Input 'x' takes"):
        loaded.predict({"x": beyond})
    loaded.close()


def test_an_output_may_have_a_number_as_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["758"]), helper.make_node("Neg", ["758"], ["759"])]
    outputs = [(name, TensorProto.FLOAT, ["n", 3]) for name in ("759", "758")]
    file = graph(tmp_path / "m.onnx", nodes, (TensorProto.FLOAT, ["n", 4]), outputs)
    with pytest.raises(ConfigError, match="has 2 outputs, '759', '758'; name one of them as `output`"):
        created(file, tmp_path)
    _, loaded = created(file, tmp_path, output="758")
    assert loaded.predict({"x": np.eye(4, dtype=np.float32)[:3]}).outputs[PROBABILITIES].argmax(axis=1).tolist() == [
        0,
        1,
        2,
    ]
    loaded.close()


def test_labels_as_strings_beside_the_probabilities_are_not_read(tmp_path: Path) -> None:
    encoder = {"keys_int64s": [0, 1, 2], "values_strings": list(LABELS), "default_string": "?"}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["best"], ["label"], domain="ai.onnx.ml", **encoder),
    ]
    outputs = [("label", TensorProto.STRING, ["n"]), ("y", TensorProto.FLOAT, ["n", 3])]
    _, loaded = created(graph(tmp_path / "m.onnx", nodes, (TensorProto.FLOAT, ["n", 4]), outputs), tmp_path)
    assert loaded.output_names == ("y",)
    assert loaded.predict({"x": np.eye(4, dtype=np.float32)[1:2]}).outputs[PROBABILITIES].argmax() == 1
    loaded.close()


@pytest.mark.parametrize("found", [[3], [1, 3]])
def test_a_model_without_an_axis_of_rows_is_refused(tmp_path: Path, found: list[int]) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"])]
    shape = numpy_helper.from_array(np.array(found, np.int64), "shape")
    nodes += [helper.make_node("Constant", [], ["s"], value=shape), helper.make_node("Reshape", ["m", "s"], ["y"])]
    file = graph(tmp_path / "m.onnx", nodes, (TensorProto.FLOAT, [4]), [("y", TensorProto.FLOAT, found)])
    with pytest.raises(ConfigError, match=r"input 'x' is declared as \[4\], without an axis of rows; export the model"):
        created(file, tmp_path)


def test_an_answer_that_is_not_finite_is_an_error_of_the_model(tmp_path: Path) -> None:
    """The last number divides: 0 / 0 is NaN."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Slice", ["x", "three", "four", "axis"], ["last"]),
        helper.make_node("Div", ["m", "last"], ["q"]),
        helper.make_node("Softmax", ["q"], ["y"]),
    ]
    places = {"three": 3, "four": 4, "axis": 1}
    nodes[:0] = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array([place], np.int64), name))
        for name, place in places.items()
    ]
    file = graph(tmp_path / "m.onnx", nodes, (TensorProto.FLOAT, ["n", 4]), [("y", TensorProto.FLOAT, ["n", 3])])
    bundle = create_bundle(BundleSpec("m", 1, LABELS, (), full=ModelSpec(file)), tmp_path / "bundle")
    loaded = load_model(bundle, bundle.manifest.models[0], RuntimeOptions())
    assert loaded.predict({"x": np.array([[0, 1, 0, 1]], np.float32)}).outputs[PROBABILITIES].argmax() == 1
    with pytest.raises(InferenceError, match=r"Model 'full' gave .*(NaN|nan)"):
        loaded.predict({"x": np.zeros((1, 4), np.float32)})
    loaded.close()
