"""Makes the trial models of `firstline_core.hardware`: a convolution, a rectifier and a mean, with weights of 1.

    python models/trial/recipe.py

One model for each runtime. Fed with ones of [8, 8], a kernel of [3, 3] ones gives 9 everywhere, and so does the mean.
"""

from __future__ import annotations

from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl
from onnx import TensorProto, helper, numpy_helper, save

_FOLDER = Path(__file__).parents[2] / "shared" / "firstline_core" / "hardware"


def onnx_model(path: Path) -> None:
    """[1, 1, 8, 8] to [1, 1, 1, 1], with operators that every provider knows."""
    weights = numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "weights")
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["convolved"]),
        helper.make_node("Relu", ["convolved"], ["rectified"]),
        helper.make_node("GlobalAveragePool", ["rectified"], ["mean"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, 8, 8))
    mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, (1, 1, 1, 1))
    graph = helper.make_graph(nodes, "trial", [x], [mean], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)


def tflite_model(path: Path) -> None:
    """[1, 8, 8, 1] to [1, 1, 1, 1], written by the format's own schema."""
    tensors = [
        _tensor("x", (1, 8, 8, 1), 0),
        _tensor("weights", (1, 3, 3, 1), 1),
        _tensor("bias", (1,), 2),
        _tensor("rectified", (1, 6, 6, 1), 0),
        _tensor("mean", (1, 1, 1, 1), 0),
    ]
    convolution = tfl.Conv2DOptionsT()
    convolution.padding, convolution.strideW, convolution.strideH = tfl.Padding.VALID, 1, 1
    convolution.fusedActivationFunction = tfl.ActivationFunctionType.RELU
    pool = tfl.Pool2DOptionsT()
    pool.padding, pool.strideW, pool.strideH, pool.filterWidth, pool.filterHeight = tfl.Padding.VALID, 1, 1, 6, 6
    graph = tfl.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs = tensors, [0], [4]
    graph.operators = [
        _operator(0, [0, 1, 2], [3], tfl.BuiltinOptions.Conv2DOptions, convolution),
        _operator(1, [3], [4], tfl.BuiltinOptions.Pool2DOptions, pool),
    ]
    model = tfl.ModelT()
    model.version, model.description, model.subgraphs = 3, "trial", [graph]
    model.operatorCodes = [_code(tfl.BuiltinOperator.CONV_2D), _code(tfl.BuiltinOperator.AVERAGE_POOL_2D)]
    model.buffers = [_buffer(None), _buffer(np.ones(9, np.float32)), _buffer(np.zeros(1, np.float32))]
    builder = flatbuffers.Builder(2048)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    path.write_bytes(bytes(builder.Output()))


def _tensor(name: str, shape: tuple[int, ...], buffer: int) -> tfl.TensorT:
    tensor = tfl.TensorT()
    tensor.name, tensor.shape, tensor.buffer, tensor.type = name, list(shape), buffer, tfl.TensorType.FLOAT32
    return tensor


def _operator(code: int, inputs: list[int], outputs: list[int], kind: int, options: object) -> tfl.OperatorT:
    operator = tfl.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = code, inputs, outputs
    operator.builtinOptionsType, operator.builtinOptions = kind, options
    return operator


def _code(builtin: int) -> tfl.OperatorCodeT:
    code = tfl.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = builtin, builtin, 1
    return code


def _buffer(numbers: np.ndarray | None) -> tfl.BufferT:
    buffer = tfl.BufferT()
    buffer.data = None if numbers is None else np.frombuffer(numbers.tobytes(), np.uint8)
    return buffer


if __name__ == "__main__":
    onnx_model(_FOLDER / "trial.onnx")
    tflite_model(_FOLDER / "trial.tflite")
