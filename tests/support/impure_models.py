"""ONNX models whose answer to a row depends on the other rows of the batch, or on chance."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import float_graph

_WEIGHTS = np.array([[3, 0, 0], [0, 3, 0], [0, 0, 3], [1, 1, 1]], np.float32)


def softmax_over_rows(file: Path) -> Path:
    """Softmax over axis 0: the rows of a batch share one sum."""
    return _write(file, [_product(), helper.make_node("Softmax", ["product"], ["y"], axis=0)], weights=_WEIGHTS)


def dropout_in_training(file: Path) -> Path:
    """Dropout that was exported switched on: every run drops other values."""
    return _write(
        file,
        [_product(), helper.make_node("Dropout", ["product", "ratio", "training"], ["y"])],
        weights=_WEIGHTS,
        ratio=np.array(0.5, np.float32),
        training=np.array(True),
    )


def dynamically_quantised(file: Path) -> Path:
    """Quantised by the range of each batch: a row with large values takes the resolution of the others."""
    scale = np.float32(3 / 127)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "weights", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    return _write(file, nodes, weights=np.rint(_WEIGHTS / scale).astype(np.int8), scale=np.array(scale, np.float32))


def normalised_by_the_batch(file: Path) -> Path:
    """Batch normalisation in training mode: each run changes the mean and the variance for the next one."""
    names = ("scale", "bias", "mean", "variance")
    node = helper.make_node(
        "BatchNormalization", ["product", *names], ["y", "new_mean", "new_variance"], training_mode=1
    )
    ones = np.ones(3, np.float32)
    return _write(file, [_product(), node], weights=_WEIGHTS, scale=ones, bias=ones, mean=ones, variance=ones)


def noisy(file: Path) -> Path:
    """Random numbers are added."""
    nodes = [
        _product(),
        helper.make_node("RandomUniformLike", ["product"], ["noise"]),
        helper.make_node("Add", ["product", "noise"], ["y"]),
    ]
    return _write(file, nodes, weights=_WEIGHTS)


def centred_over_rows(file: Path) -> Path:
    """The mean over axis 0, which is a constant of the graph, is subtracted."""
    nodes = [
        _product(),
        helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(np.array([0]))),
        helper.make_node("ReduceMean", ["product", "axes"], ["mean"]),
        helper.make_node("Sub", ["product", "mean"], ["y"]),
    ]
    return _write(file, nodes, opset=18, weights=_WEIGHTS)


def scaled_by_the_batch(file: Path) -> Path:
    """Divided by the largest value of the batch."""
    nodes = [
        _product(),
        helper.make_node("ReduceMax", ["product"], ["largest"]),
        helper.make_node("Div", ["product", "largest"], ["y"]),
    ]
    return _write(file, nodes, weights=_WEIGHTS)


def one_row_at_a_time(file: Path) -> Path:
    """A shape that was fixed at one row when the model was exported."""
    nodes = [_product(), helper.make_node("Reshape", ["product", "shape"], ["y"])]
    return _write(file, nodes, weights=_WEIGHTS, shape=np.array([1, 3]))


def pure(file: Path) -> Path:
    """Softmax over the classes, which mixes no rows."""
    return _write(file, [_product(), helper.make_node("Softmax", ["product"], ["y"], axis=-1)], weights=_WEIGHTS)


DEPENDENT_ON_BATCH = {
    softmax_over_rows: "Softmax",
    dynamically_quantised: "DynamicQuantizeLinear",
    centred_over_rows: "ReduceMean",
    scaled_by_the_batch: "ReduceMax",
    one_row_at_a_time: "",
}
"""With the operator that causes it; "" if no known one does."""

DEPENDENT_ON_RUN = {
    dropout_in_training: "Dropout",
    noisy: "RandomUniformLike",
    normalised_by_the_batch: "BatchNormalization",
}


def _product() -> Any:
    return helper.make_node("MatMul", ["x", "weights"], ["product"])


def _write(file: Path, nodes: list[Any], *, opset: int = 17, **constants: NDArray[Any]) -> Path:
    """`x` FP32 [n, 4] to `y` FP32 [n, 3]."""
    return float_graph(file, nodes, {"x": ["n", 4]}, {"y": ["n", 3]}, opset=opset, **constants)


def noisy_tflite(file: Path) -> Path:
    """`x` FP32 [1, 3] plus random numbers, as a TFLite model."""
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import Builder

    kinds = (schema.BuiltinOperator.RANDOM_UNIFORM, schema.BuiltinOperator.ADD)
    codes = [schema.OperatorCodeT(builtinCode=kind, version=1) for kind in kinds]
    for code in codes:
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    floats, integers = schema.TensorType.FLOAT32, schema.TensorType.INT32
    declared = [("x", [1, 3], floats, 0), ("shape", [2], integers, 1), ("noise", [1, 3], floats, 0)]
    tensors = [
        schema.TensorT(name=name.encode(), shape=shape, type=kind, buffer=buffer)
        for name, shape, kind, buffer in [*declared, ("y", [1, 3], floats, 0)]
    ]
    options = schema.BuiltinOptions
    operators = [
        schema.OperatorT(0, [1], [2], options.RandomOptions, schema.RandomOptionsT()),
        schema.OperatorT(1, [0, 2], [3], options.AddOptions, schema.AddOptionsT()),
    ]
    graph = schema.SubGraphT(tensors=tensors, inputs=[0], outputs=[3], operators=operators)
    buffers = [schema.BufferT(), schema.BufferT(data=np.array([1, 3], np.int32).view(np.uint8))]
    model = schema.ModelT(version=3, operatorCodes=codes, subgraphs=[graph], buffers=buffers)
    builder = Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    file.write_bytes(bytes(builder.Output()))
    return file
