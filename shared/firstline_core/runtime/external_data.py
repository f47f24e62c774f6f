"""Detects ONNX weights that are stored outside the model file.

A bundle's digest covers the bytes of the model; it would not cover weights in a second file, whose path could lead
anywhere. ONNX Runtime cannot report them, and the `onnx` package is too large for a device.
"""

from __future__ import annotations

from firstline_core.protocol.protobuf import fields

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
    """Returns whether any tensor of a serialised ONNX ModelProto has its data in another file.

    Raises:
        ValueError: not protobuf.
    """
    found = [("model", memoryview(model))]
    while found:
        message, data = found.pop()
        for number, value in fields(data):
            if message == "tensor":
                if number == _TENSOR_DATA_LOCATION and value == _EXTERNAL:
                    return True
            elif (inner := _PATHS[message].get(number)) is not None and isinstance(value, memoryview):
                found.append((inner, value))
    return False
