"""The precision of a model file: the number format in which most of its weights are stored.

TFLite files are read with the schema classes of ai-edge-litert, ONNX files as protobuf messages.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from firstline_core.runtime.base import RuntimeName
from firstline_core.runtime.onnx_file import parse_model

UNKNOWN = "unknown"
_TFLITE = {0: "fp32", 1: "fp16", 2: "int32", 3: "uint8", 4: "int64", 7: "int16", 9: "int8", 10: "fp64", 17: "int4"}
_ONNX = {1: "fp32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 10: "fp16", 11: "fp64", 16: "bf16"}


def precision_of(file: Path, runtime: RuntimeName) -> str:
    """Returns the precision, e.g. "fp32" or "int8"; "unknown" for a file without weights, or of another kind."""
    sizes = weights_of(file, runtime)
    return sizes.most_common(1)[0][0] if sizes else UNKNOWN


def weights_of(file: Path, runtime: RuntimeName) -> Counter[str]:
    """Returns the bytes of weights by number format; empty for a file without weights, or of another kind."""
    content = file.read_bytes()
    sizes: Counter[str] = Counter()
    try:
        for precision, size_bytes in _WEIGHTS[runtime](content):
            sizes[precision] += size_bytes
    except (struct.error, ValueError, IndexError, TypeError):
        return Counter()  # the runtime says what is wrong with the file
    return sizes


def _tflite_weights(content: bytes) -> Iterator[tuple[str, int]]:
    model = import_module("ai_edge_litert.schema_py_generated").Model.GetRootAs(content, 0)
    sizes = [model.Buffers(at).DataLength() for at in range(model.BuffersLength())]
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            if size_bytes := sizes[tensor.Buffer()]:
                yield _TFLITE.get(tensor.Type(), UNKNOWN), size_bytes


def _onnx_weights(content: bytes) -> Iterator[tuple[str, int]]:
    graph = parse_model(content).graph
    # Some exporters write constants as nodes.
    constants = (attribute for node in graph.node if node.op_type == "Constant" for attribute in node.attribute)
    for tensor in (*graph.initializer, *(each.t for each in constants if each.HasField("t"))):
        yield _ONNX.get(tensor.data_type, UNKNOWN), tensor.ByteSize()


_WEIGHTS: Mapping[RuntimeName, Callable[[bytes], Iterator[tuple[str, int]]]] = {
    "onnx": _onnx_weights,
    "tflite": _tflite_weights,
}
