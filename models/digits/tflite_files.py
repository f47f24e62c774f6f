"""The edge model as TFLite, without TensorFlow: the float file from the schema, the int8 file by quantising it.

Input `image` FP32 [1, 8, 8, 1] in 0..1 (a runtime may resize the first axis), output `logits` FP32 [1, 10];
in the int8 file both are int8, with scale and zero point.
"""

from __future__ import annotations

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_quantizer import quantizer, recipe
from numpy.typing import NDArray

SIGNATURE = "serving_default"
# What the schema asks for (`force_align: 16` on Buffer.data), and what the generated Python writer leaves out.
BUFFER_ALIGNMENT_BYTES = 16


class _AlignedBuilder(flatbuffers.Builder):  # type: ignore[misc]  # the package has no types
    """Aligns vectors as the schema asks, so that a runtime may map the file and compute on it in place."""

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> int:  # noqa: N802, N803
        return int(super().StartVector(elemSize, numElems, max(alignment, BUFFER_ALIGNMENT_BYTES)))


def edge_tflite(weights: NDArray[np.float32], bias: NDArray[np.float32]) -> bytes:
    """One fully connected layer on the flattened image.

    Args:
        weights: (classes, 64).
        bias: (classes,).
    """
    classes, pixels = weights.shape
    flat_shape = np.array([-1, pixels], np.int32)
    # By convention buffer 0 is empty and means "no constant".
    buffers = [b"", flat_shape.tobytes(), weights.tobytes(), bias.tobytes()]
    float32, int32 = schema.TensorType.FLOAT32, schema.TensorType.INT32
    tensors = [
        _tensor("image", float32, [1, 8, 8, 1], rows_free=True),
        _tensor("flat_shape", int32, [2], buffer=1),
        _tensor("pixels", float32, [1, pixels], rows_free=True),
        _tensor("weights", float32, [classes, pixels], buffer=2),
        _tensor("bias", float32, [classes], buffer=3),
        _tensor("logits", float32, [1, classes], rows_free=True),
    ]
    reshape = schema.ReshapeOptionsT()
    reshape.newShape = flat_shape
    dense = schema.FullyConnectedOptionsT()
    operators = [
        _operator(0, [0, 1], [2], schema.BuiltinOptions.ReshapeOptions, reshape),
        _operator(1, [2, 3, 4], [5], schema.BuiltinOptions.FullyConnectedOptions, dense),
    ]

    graph = schema.SubGraphT()
    graph.name = "main"
    graph.tensors, graph.operators = tensors, operators
    graph.inputs, graph.outputs = np.array([0], np.int32), np.array([5], np.int32)

    model = schema.ModelT()
    model.version = 3
    model.description = "firstline models/digits"
    model.operatorCodes = [
        _code(schema.BuiltinOperator.RESHAPE),
        _code(schema.BuiltinOperator.FULLY_CONNECTED),
    ]
    model.subgraphs = [graph]
    model.signatureDefs = [_signature("image", 0, "logits", 5)]
    model.buffers = [_buffer(data) for data in buffers]
    builder = _AlignedBuilder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def quantised_int8(float_model: bytes, images: NDArray[np.float32]) -> bytes:
    """Weights and activations int8; the ranges of the activations are those seen on `images`.

    Args:
        float_model: a .tflite file with the signature above.
        images: (n, 8, 8, 1) float32 in 0..1.
    """
    worker = quantizer.Quantizer(bytearray(float_model), recipe.static_wi8_ai8())
    # In one batch: over several, the quantiser averages their ranges, and the surest logits would be clipped.
    seen = worker.calibrate({SIGNATURE: [{"image": images}]}, num_threads=1)
    result = worker.quantize(seen, enable_progress_bar=False, enable_progress_report=False)
    return bytes(result.quantized_model)


def _tensor(name: str, dtype: int, shape: list[int], buffer: int = 0, rows_free: bool = False) -> schema.TensorT:
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.buffer = name, dtype, buffer
    tensor.shape = np.array(shape, np.int32)
    if rows_free:
        tensor.shapeSignature = np.array([-1, *shape[1:]], np.int32)
    return tensor


def _operator(code: int, inputs: list[int], outputs: list[int], kind: int, options: object) -> schema.OperatorT:
    operator = schema.OperatorT()
    operator.opcodeIndex = code
    operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array(outputs, np.int32)
    operator.builtinOptionsType, operator.builtinOptions = kind, options
    return operator


def _code(builtin: int) -> schema.OperatorCodeT:
    code = schema.OperatorCodeT()
    # Readers from before 2020 know only the first field; both are required to agree.
    code.deprecatedBuiltinCode = code.builtinCode = builtin
    code.version = 1
    return code


def _signature(input_name: str, input_index: int, output_name: str, output_index: int) -> schema.SignatureDefT:
    signature = schema.SignatureDefT()
    signature.signatureKey = SIGNATURE
    signature.subgraphIndex = 0
    signature.inputs = [_tensor_map(input_name, input_index)]
    signature.outputs = [_tensor_map(output_name, output_index)]
    return signature


def _tensor_map(name: str, index: int) -> schema.TensorMapT:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, index
    return entry


def _buffer(data: bytes) -> schema.BufferT:
    buffer = schema.BufferT()
    if data:
        buffer.data = np.frombuffer(data, np.uint8)
    return buffer
