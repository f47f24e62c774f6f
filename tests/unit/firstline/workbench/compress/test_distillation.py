from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from firstline.workbench.compress import distillation


def test_other_views_are_of_the_same_images() -> None:
    rows = np.random.default_rng(0).random((6, 3, 8, 8), np.float32)
    made = distillation.views(rows, np.random.default_rng(1))
    assert made.shape == rows.shape
    assert made.dtype == np.float32
    assert not np.array_equal(made, rows)
    assert np.array_equal(made, distillation.views(rows, np.random.default_rng(1)))
    assert distillation.views(rows.reshape(6, -1), np.random.default_rng(1)).shape == (6, 192)


def _small(seed: int) -> Any:
    random = np.random.default_rng(seed)
    weights = {
        "a.w": random.normal(0, 0.3, (8, 1, 3, 3)),
        "a.b": np.zeros(8),
        "fc.w": random.normal(0, 1, (2, 8)),
        "fc.b": np.zeros(2),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a.w", "a.b"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3], strides=[1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_a_student_comes_to_say_what_its_teacher_says() -> None:
    rows = np.random.default_rng(2).normal(0, 1, (64, 1, 8, 8)).astype(np.float32)
    teacher = ReferenceEvaluator(_small(0))
    wanted = teacher.run(None, {"x": rows})[0]
    student, told = _small(1), []
    before = student.SerializeToString()
    taught = distillation.distil(
        student,
        lambda seen: teacher.run(None, {"x": seen}),
        rows,
        epochs=30,
        rate=0.02,
        batch=16,
        progress=lambda *done: told.append(done),
    )
    assert student.SerializeToString() == before
    onnx.checker.check_model(taught)

    def wrong(model: Any) -> float:
        said = ReferenceEvaluator(model).run(None, {"x": rows})[0]
        return float(np.abs(np.diff(said) - np.diff(wanted)).mean())

    assert wrong(taught) < 0.5 * wrong(student)
    assert told[-1] == (30, 30)
