"""Finds ONNX weights that are stored outside the model file.

A bundle's digest covers the model's bytes; weights in a second file would be outside of it, and their path could lead
anywhere. ONNX Runtime gives no way to ask, and the `onnx` package is too heavy for a device: this reads just enough of
the protobuf wire format (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Which fields of onnx.proto lead to a TensorProto: {message: {field number: message}}.
_PATHS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_TENSOR_DATA_LOCATION = 14
_EXTERNAL = 1


def has_external_data(model: bytes) -> bool:
    """Whether any tensor of a serialised ONNX ModelProto keeps its data in another file.

    Raises:
        ValueError: not protobuf.
    """
    found = [("model", memoryview(model))]
    while found:
        message, data = found.pop()
        for number, value in _fields(data):
            if message == "tensor":
                if number == _TENSOR_DATA_LOCATION and value == _EXTERNAL:
                    return True
            elif (inner := _PATHS[message].get(number)) is not None and isinstance(value, memoryview):
                found.append((inner, value))
    return False


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} is not protobuf's")
        if position + size > len(data):
            raise ValueError("a field runs past its end")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("a number runs past its end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than ten bytes")
