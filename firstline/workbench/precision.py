"""The precision of a model file: the number format in which most of its weights are stored.

Both formats are read just far enough: TFLite is a flatbuffer (https://flatbuffers.dev/internals, fields numbered as in
TensorFlow's schema.fbs), ONNX a protobuf (fields of onnx.proto).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from firstline_core.protocol.protobuf import fields

UNKNOWN = "unknown"
_TFLITE = {0: "fp32", 1: "fp16", 2: "int32", 3: "uint8", 4: "int64", 7: "int16", 9: "int8", 10: "fp64", 17: "int4"}
_ONNX = {1: "fp32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 10: "fp16", 11: "fp64", 16: "bf16"}


def precision_of(file: Path, runtime: Literal["onnx", "tflite"]) -> str:
    """E.g. "fp32" or "int8"; "unknown" where the file has no weights, or is not what it should be."""
    sizes = weights_of(file, runtime)
    return sizes.most_common(1)[0][0] if sizes else UNKNOWN


def weights_of(file: Path, runtime: Literal["onnx", "tflite"]) -> Counter[str]:
    """Bytes of weights by their number format; empty where there are none, or the file is not what it should be."""
    content = file.read_bytes()
    sizes: Counter[str] = Counter()
    try:
        for precision, size_bytes in (_onnx_weights if runtime == "onnx" else _tflite_weights)(content):
            sizes[precision] += size_bytes
    except (struct.error, ValueError, IndexError):
        return Counter()  # the runtime says what is wrong with the file
    return sizes


class _Table:
    """A flatbuffer table: an offset to a vtable, which has the fields' own offsets."""

    def __init__(self, content: bytes, position: int) -> None:
        self.content, self.position = content, position
        self._vtable = position - struct.unpack_from("<i", content, position)[0]
        self._vtable_bytes = struct.unpack_from("<H", content, self._vtable)[0]

    def field(self, number: int) -> int:
        """Where the field is; 0 where it has its default."""
        entry = 4 + 2 * number
        if entry >= self._vtable_bytes:
            return 0
        offset: int = struct.unpack_from("<H", self.content, self._vtable + entry)[0]
        return self.position + offset if offset else 0

    def number(self, number: int, form: str) -> int:
        position = self.field(number)
        return int(struct.unpack_from(form, self.content, position)[0]) if position else 0

    def vector(self, number: int) -> tuple[int, int]:
        """(start, length) of a vector; length 0 where it is absent."""
        position = self.field(number)
        if not position:
            return 0, 0
        start = position + struct.unpack_from("<I", self.content, position)[0]
        return start + 4, struct.unpack_from("<I", self.content, start)[0]

    def tables(self, number: int) -> Iterator[_Table]:
        start, length = self.vector(number)
        for entry in range(start, start + 4 * length, 4):
            yield _Table(self.content, entry + struct.unpack_from("<I", self.content, entry)[0])


def _tflite_weights(content: bytes) -> Iterator[tuple[str, int]]:
    model = _Table(content, struct.unpack_from("<I", content, 0)[0])
    # Model: subgraphs 2, buffers 4. Buffer: data 0. SubGraph: tensors 0. Tensor: type 1, buffer 2.
    sizes = [buffer.vector(0)[1] for buffer in model.tables(4)]
    for graph in model.tables(2):
        for tensor in graph.tables(0):
            size_bytes = sizes[tensor.number(2, "<I")]
            if size_bytes:
                yield _TFLITE.get(tensor.number(1, "<b"), UNKNOWN), size_bytes


def _onnx_weights(content: bytes) -> Iterator[tuple[str, int]]:
    # ModelProto: graph 7. GraphProto: node 1, initializer 5. TensorProto: data_type 2.
    for graph in _inside(memoryview(content), 7):
        for tensor in (*_inside(graph, 5), *_constants(graph)):
            data_type = next((value for field, value in fields(tensor) if field == 2), 0)
            yield _ONNX.get(data_type if isinstance(data_type, int) else 0, UNKNOWN), len(tensor)


def _constants(graph: memoryview) -> Iterator[memoryview]:
    """Tensors that some exporters write as nodes."""
    # NodeProto: op_type 4, attribute 5. AttributeProto: tensor 5.
    for node in _inside(graph, 1):
        if any(bytes(kind) == b"Constant" for kind in _inside(node, 4)):
            for attribute in _inside(node, 5):
                yield from _inside(attribute, 5)


def _inside(message: memoryview, number: int) -> Iterator[memoryview]:
    """The fields of that number that have a length."""
    return (value for field, value in fields(message) if field == number and isinstance(value, memoryview))
