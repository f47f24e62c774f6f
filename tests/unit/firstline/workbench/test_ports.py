"""Outputs of model files that are not one probability for each label: chosen, completed, or refused with advice."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.images import by_name

from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.step_syntax import parse_postprocess
from firstline_core.bundle.loading import load_model
from firstline_core.errors import FirstlineError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Tensor

_WEIGHTS = np.array([[3, 0, 0], [0, 3, 0], [0, 0, 3], [1, 1, 1]], np.float32)
_ROWS = np.array([[2, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], np.float32)
_OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3))


def _spec(file: Path, labels: int = 3, postprocess: str = "") -> BundleSpec:
    model = ModelSpec(file, postprocess=parse_postprocess(postprocess))
    return BundleSpec("tried", 1, tuple("abc"[:labels]), (model,), policy=PolicySpec(threshold=0.9))


def _graph(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.ValueInfoProto], classes: int = 3
) -> onnx.ModelProto:
    """A model of `x` FP32 [n, 4] that begins with logits `l` FP32 [n, classes]."""
    weights = numpy_helper.from_array(np.ascontiguousarray(_WEIGHTS[:, :classes]), "w")
    input_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["l"]), *nodes], "g", [input_info], list(outputs), [weights]
    )
    return helper.make_model(graph, opset_imports=list(_OPSETS), ir_version=8)


def _floats(name: str, *sizes: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *sizes])


def _zip_map() -> onnx.ModelProto:
    """As skl2onnx exports a classifier unless it is asked not to."""
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, number))
    return _graph(
        [
            helper.make_node("Softmax", ["l"], ["p"]),
            helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0),
            helper.make_node("ZipMap", ["p"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
        ],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]), helper.make_value_info("maps", maps)],
    )


def _columns() -> onnx.ModelProto:
    """One output for each label, as skl2onnx exports with zipmap='columns'."""
    names = ["i0", "i1", "i2"]
    cut = helper.make_node("Split", ["p"], [f"{name}_" for name in names], axis=1)
    flat = [helper.make_node("Squeeze", [f"{name}_", "axes"], [name]) for name in names]
    model = _graph([helper.make_node("Softmax", ["l"], ["p"]), cut, *flat], [_floats(name) for name in names])
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
    return model


def _label_only() -> onnx.ModelProto:
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    return _graph([helper.make_node("ArgMax", ["l"], ["label"], axis=1, keepdims=0)], [label])


def _squeezed() -> onnx.ModelProto:
    output = helper.make_tensor_value_info("p", TensorProto.FLOAT, [3])
    return _graph([helper.make_node("Softmax", ["l"], ["q"]), helper.make_node("Squeeze", ["q"], ["p"])], [output])


def _reshaped(*sizes: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        model = _graph([helper.make_node("Expand", ["r", "s"], ["p"])], [_floats("p", *sizes)])
        axes = numpy_helper.from_array(np.array(range(2, len(sizes) + 1), np.int64), "a")
        model.graph.node.insert(1, helper.make_node("ReduceMax", ["l"], ["m"], axes=[1]))
        model.graph.node.insert(2, helper.make_node("Unsqueeze", ["m", "a"], ["r"]))
        model.graph.initializer.extend([axes, numpy_helper.from_array(np.array([1, *sizes], np.int64), "s")])
        return model

    return build


def _saved(folder: Path, model: onnx.ModelProto) -> Path:
    file = folder / "mine.onnx"
    file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_zip_map, "output 'maps' is a list of maps (ZipMap), not a tensor of probabilities; export the model again "),
        (_columns, "has an output for each label, 'i0', 'i1', 'i2', instead of one for all; export the model again"),
        (_label_only, "its output 'label' is INT64, which are class numbers and no probabilities"),
        (_squeezed, "its output 'p' is declared as [3], without an axis of rows; export the model so that"),
        (_reshaped(84, 16), "has 1,344 outputs and there are 3 labels: output 'p' [-1, 84, 16] looks like the boxes"),
        (_reshaped(3, 8, 8), "has 192 outputs and there are 3 labels: output 'p' [-1, 3, 8, 8] looks like a mask"),
        (_reshaped(1), "has 1 output and there are 3 labels: output 'p' [-1, 1] looks like the value of a regression"),
    ],
)
def test_outputs_of_other_kinds_are_refused_with_advice(
    tmp_path: Path, build: Callable[[], onnx.ModelProto], message: str
) -> None:
    file = _saved(tmp_path, build())
    with pytest.raises(FirstlineError) as caught:
        create_bundle(_spec(file), tmp_path / "out")
    assert message in caught.value.message
    assert "mine.onnx" in caught.value.message
    assert ".out." not in caught.value.message
    assert not (tmp_path / "out").exists()


def test_probabilities_next_to_class_numbers_are_chosen(tmp_path: Path) -> None:
    model = _graph(
        [helper.make_node("Softmax", ["l"], ["p"]), helper.make_node("ArgMax", ["l"], ["label"], axis=1, keepdims=0)],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]), _floats("p", 3)],
    )
    bundle = create_bundle(_spec(_saved(tmp_path, model)), tmp_path / "out")
    assert bundle.manifest.edge[0].output == "p"


def test_output_of_unknown_rank_is_tried(tmp_path: Path) -> None:
    """The branches give different ranks, so that the graph does not state one."""
    shapeless = helper.make_value_info("p", helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    branches = {
        f"{name}_branch": helper.make_graph([node], name, [], [helper.make_empty_tensor_value_info(name)])
        for name, node in (
            ("then", helper.make_node("Identity", ["q"], ["then"])),
            ("else", helper.make_node("Unsqueeze", ["q", "zero"], ["else"])),
        )
    }
    model = _graph(
        [
            helper.make_node("Softmax", ["l"], ["q"]),
            helper.make_node("Shape", ["x"], ["sizes"]),
            helper.make_node("Gather", ["sizes", "one"], ["columns"]),
            helper.make_node("Greater", ["columns", "zero"], ["always"]),
            helper.make_node("If", ["always"], ["p"], **branches),
        ],
        [shapeless],
    )
    numbers = [numpy_helper.from_array(np.array([n], np.int64), name) for n, name in enumerate(("zero", "one"))]
    model.graph.initializer.extend(numbers)
    bundle = create_bundle(_spec(_saved(tmp_path, model)), tmp_path / "out")
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    assert loaded.predict(by_name(Tensor("x", _ROWS))).outputs[PROBABILITIES].argmax(axis=1).tolist() == [0, 1, 0]


@pytest.mark.parametrize("postprocess", ["", "binary"])
def test_one_sigmoid_is_a_classifier_of_two_labels(tmp_path: Path, postprocess: str) -> None:
    model = _graph([helper.make_node("Sigmoid", ["l"], ["p"])], [_floats("p", 1)], classes=1)
    warnings: list[str] = []
    spec = _spec(_saved(tmp_path, model), 2, postprocess)
    bundle = create_bundle(spec, tmp_path / "out", warn=warnings.append)
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    high = 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(
        loaded.predict(by_name(Tensor("x", _ROWS[:1]))).outputs[PROBABILITIES], [[1 - high, high]], atol=1e-6
    )
    assert [sentence.split(";")[0] for sentence in warnings] == (
        [] if postprocess else ["mine.onnx: its one output is read as the probability of the second label, 'b'"]
    )


def test_one_logit_needs_its_own_step(tmp_path: Path) -> None:
    file = _saved(tmp_path, _graph([helper.make_node("Identity", ["l"], ["p"])], [_floats("p", 1)], classes=1))
    for postprocess in ("", "softmax"):
        with pytest.raises(FirstlineError, match="binary:logit"):
            create_bundle(_spec(file, 2, postprocess), tmp_path / "out")
    bundle = create_bundle(_spec(file, 2, "binary:logit"), tmp_path / "out")
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    high = 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(
        loaded.predict(by_name(Tensor("x", _ROWS[:1]))).outputs[PROBABILITIES], [[1 - high, high]], atol=1e-6
    )


def _new_ir(model: onnx.ModelProto) -> None:
    model.ir_version = 99


def _new_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


def _own_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Guess"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_new_ir, "mine.onnx: it has IR version 99, and this ONNX Runtime reads up to "),
        (_new_opset, "mine.onnx: it uses opset 99 of ai.onnx, and this ONNX Runtime supports up to "),
        (_own_operator, "mine.onnx: this ONNX Runtime does not have its operator Guess; export the model with"),
    ],
)
def test_models_for_another_runtime_are_named_with_a_reason(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    model = _graph([helper.make_node("Softmax", ["l"], ["p"])], [_floats("p", 3)])
    change(model)
    file = _saved(tmp_path, model)
    with pytest.raises(FirstlineError) as caught:
        create_bundle(_spec(file), tmp_path / "out")
    assert caught.value.message.startswith(str(file.parent / message))
    assert "ONNXRuntimeError" not in caught.value.message


def test_external_weights_are_named_by_the_users_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.onnx"
    model = _graph([helper.make_node("Softmax", ["l"], ["p"])], [_floats("p", 3)])
    onnx.save(model, file, save_as_external_data=True, location="mine.onnx.data", size_threshold=0)
    with pytest.raises(FirstlineError) as caught:
        create_bundle(_spec(file), tmp_path / "out")
    assert caught.value.message.startswith(f"{file} keeps weights in another file, 'mine.onnx.data', ")


def test_damaged_score_graph_is_named_by_the_path_of_the_user(tmp_path: Path) -> None:
    score = tmp_path / "score.onnx"
    score.write_bytes(b"\x0f damaged")
    model = _saved(tmp_path, _graph([helper.make_node("Softmax", ["l"], ["p"])], [_floats("p", 3)]))
    with pytest.raises(FirstlineError) as caught:
        create_bundle(_spec(model, postprocess=f"graph:{score}"), tmp_path / "out")
    assert str(score) in caught.value.message
    assert ".out." not in caught.value.message
