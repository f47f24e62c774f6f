"""Finds operators in a model file that mix rows, or whose result is left to chance. For messages only.

The `onnx` package is too large for a device, so the file is read as protobuf; the numbers are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from firstline_core.protocol.protobuf import fields
from firstline_core.runtime.litert import operator_names
from firstline_core.runtime.onnx import messages

_EVAL = "export the model for inference (in PyTorch: model.eval() and training=TrainingMode.EVAL)"
_AXIS = "export it with the axis of the classes, for example 1 or -1"
_STATIC = "quantise statically, for example with `firstline compress`"
_CONSTANT = "export the model without it, or with a constant in its place"
_BATCH_FIRST = "export the model with the rows on its batch axis (in PyTorch: batch_first=True)"

_RANDOM = {"RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Bernoulli", "Multinomial"}
_AXIS_OPERATORS = {"Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum", "LpNormalization", "TopK"}
_DYNAMIC = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
_LOOPS = {"Loop", "Scan", "LSTM", "GRU", "RNN"}
_TFLITE_RANDOM = {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"}
_TFLITE_VARIABLES = {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"}
_OLD_SOFTMAX = 13  # before this opset, the default axis was 1 instead of -1


class RowOperator(NamedTuple):
    """An operator, with what it does and what to do about it; `str()` gives a part of a sentence."""

    kind: str
    name: str
    does: str
    remedy: str

    def __str__(self) -> str:
        named = f" '{self.name}'" if self.name else ""
        return f"{self.kind}{named} {self.does}; {self.remedy}"


def find_row_operator(
    file: Path, runtime: Literal["onnx", "tflite"], depends_on: Literal["nothing", "batch", "run"]
) -> RowOperator | None:
    """Returns the first known operator that makes an answer depend on the batch, or on the run.

    Args:
        file: of the model.
        runtime: that loads it.
        depends_on: the result of `row_check.py`.
    """
    if runtime == "tflite":
        names = operator_names(file)
        variables = next((name for name in names if name in _TFLITE_VARIABLES), None)
        chance = next((name for name in names if name in _TFLITE_RANDOM), None)
        if chance is not None:
            return RowOperator(chance, "", "draws random numbers", _CONSTANT)
        if variables is not None:
            return RowOperator(variables, "", "keeps state that is not reset", "export the model without state")
        return None
    try:
        found = list(_onnx_operators(file.read_bytes()))
    except (OSError, ValueError):
        return None
    return next((operator for of, operator in found if of == depends_on), None) or next(
        (operator for of, operator in found if of == "loop"), None
    )


class _Node(NamedTuple):
    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, list[int]]


class _Message:
    """The fields of a protobuf message by number; those of another type than is asked for are left out."""

    def __init__(self, data: memoryview) -> None:
        self._fields: defaultdict[int, list[int | memoryview]] = defaultdict(list)
        for number, value in fields(data):
            self._fields[number].append(value)

    def parts(self, *numbers: int) -> list[memoryview]:
        return [value for number in numbers for value in self._fields[number] if isinstance(value, memoryview)]

    def messages(self, number: int) -> Iterator[_Message]:
        return map(_Message, self.parts(number))

    def texts(self, number: int) -> list[str]:
        return [bytes(value[:200]).decode(errors="replace") for value in self.parts(number)]

    def text(self, number: int) -> str:
        return "".join(self.texts(number)[-1:])

    def integers(self, *numbers: int) -> list[int]:
        return [one for number in numbers for value in self._fields[number] for one in _integers(value)]


def _onnx_operators(model: bytes) -> Iterator[tuple[str, RowOperator]]:
    parsed, opset = _Message(memoryview(model)), 0
    for imported in parsed.messages(8):
        opset = next(iter(imported.integers(2)), opset) if not imported.text(1) else opset
    nodes, constants = list[_Node](), dict[str, list[int]]()
    bodies = [("graph", each) for each in parsed.parts(7)] + [("function", each) for each in parsed.parts(25)]
    for kind, data in chain.from_iterable(messages(*body) for body in bodies):
        if kind == "graph":
            constants |= {tensor.text(8): _values(tensor) for tensor in _Message(data).messages(5)}
        elif kind == "node":
            node = _node(_Message(data))
            nodes.append(node)
            if node.kind == "Constant" and node.outputs:
                constants[node.outputs[0]] = next(iter(node.attributes.values()), [])
    for node in nodes:
        yield from _judged(node, constants, opset)


def _node(message: _Message) -> _Node:
    attributes = dict[str, list[int]]()
    for each in message.messages(5):
        name = each.text(1)
        numbers = each.integers(3, 8) + [value for tensor in each.messages(5) for value in _values(tensor)]
        # 0 may be left out of the file.
        attributes[name] = [0] if name == "axis" and not numbers else numbers
    outputs = [name for name in message.texts(2) if name]
    return _Node(message.text(4), message.text(3), message.texts(1), outputs, attributes)


def _judged(node: _Node, constants: Mapping[str, list[int]], opset: int) -> Iterator[tuple[str, RowOperator]]:
    kind, attributes = node.kind, node.attributes
    if kind in _RANDOM:
        yield "run", RowOperator(kind, node.name, "draws random numbers", _CONSTANT)
    elif kind == "Dropout" and _drops(node, constants, opset):
        yield "run", RowOperator(kind, node.name, "was exported in training mode", _EVAL)
    elif kind == "BatchNormalization" and (attributes.get("training_mode") == [1] or len(node.outputs) > 1):
        trained = RowOperator(kind, node.name, "was exported in training mode", _EVAL)
        yield from (("batch", trained), ("run", trained))  # ONNX Runtime keeps its averages for the next run
    elif kind in _DYNAMIC:
        yield "batch", RowOperator(kind, node.name, "takes its range from the whole batch", _STATIC)
    elif kind in _AXIS_OPERATORS or kind.startswith("Reduce"):
        if 0 in (axes := _axes(node, constants, opset)) or (kind.startswith("Reduce") and not axes):
            yield "batch", RowOperator(kind, node.name, "works over axis 0, the rows", _AXIS)
    elif kind in _LOOPS:
        yield "loop", RowOperator(kind, node.name, "may carry state from row to row", _BATCH_FIRST)


def _drops(node: _Node, constants: Mapping[str, list[int]], opset: int) -> bool:
    if opset < 7:
        return node.attributes.get("is_test", [0]) == [0]
    return len(node.inputs) > 2 and node.inputs[2] != "" and constants.get(node.inputs[2], [1]) != [0]


def _axes(node: _Node, constants: Mapping[str, list[int]], opset: int) -> list[int]:
    """Returns the axes; [] for all of them, and a negative one if they are not known."""
    for attribute in ("axis", "axes"):
        if attribute in node.attributes:
            return node.attributes[attribute]
    if node.kind.startswith("Arg"):
        return [0]
    if node.kind.startswith("Reduce") or node.kind == "CumSum":
        if len(node.inputs) > 1 and node.inputs[1]:
            return constants.get(node.inputs[1], [-1])
        return [-1] if node.attributes.get("noop_with_empty_axes") == [1] else []
    return [1 if opset < _OLD_SOFTMAX and node.kind != "TopK" else -1]


def _values(tensor: _Message) -> list[int]:
    """Returns the values of a tensor of a few integers or booleans; [] for another one."""
    form = {6: "i", 7: "q", 9: "?"}.get(next(iter(tensor.integers(2)), 0))
    if form is None:
        return []
    size, raw = struct.calcsize(form), b"".join(bytes(part[:64]) for part in tensor.parts(9))
    packed = struct.iter_unpack(f"<{form}", raw[: len(raw) // size * size])
    return tensor.integers(5, 7) or [int(one) for (one,) in packed]


def _integers(value: int | memoryview) -> list[int]:
    """Returns one integer, or the packed ones; they are signed numbers of 64 bits."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, number, shift = list[int](), 0, 0
    for byte in value[:1024]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(_signed(number))
            number = shift = 0
    return numbers


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
