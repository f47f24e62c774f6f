"""Finds operators in a model file that mix rows, or whose result is left to chance. For messages only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, assert_never

import numpy as np

from firstline_core.runtime.base import RuntimeName
from firstline_core.runtime.litert import operator_names

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
_NAME_CHARACTERS = 200
_FEW = 64  # more axes than any operator has


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
    file: Path, runtime: RuntimeName, depends_on: Literal["nothing", "batch", "run"]
) -> RowOperator | None:
    """Returns the first known operator that makes an answer depend on the batch, or on the run.

    Args:
        file: of the model.
        runtime: that loads it.
        depends_on: the result of `row_check.py`.
    """
    match runtime:
        case "onnx":
            return _onnx_operator(file, depends_on)
        case "tflite":
            return _tflite_operator(file)
        case _:
            assert_never(runtime)


def _tflite_operator(file: Path) -> RowOperator | None:
    names = operator_names(file)
    variables = next((name for name in names if name in _TFLITE_VARIABLES), None)
    chance = next((name for name in names if name in _TFLITE_RANDOM), None)
    if chance is not None:
        return RowOperator(chance, "", "draws random numbers", _CONSTANT)
    if variables is not None:
        return RowOperator(variables, "", "keeps state that is not reset", "export the model without state")
    return None


def _onnx_operator(file: Path, depends_on: str) -> RowOperator | None:
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


def _onnx_operators(model: bytes) -> Iterator[tuple[str, RowOperator]]:
    from firstline_core.runtime.onnx_file import messages, parse_model

    parsed = parse_model(model)
    opset = next((imported.version for imported in parsed.opset_import if not imported.domain), 0)
    nodes, constants = list[_Node](), dict[str, list[int]]()
    for each in chain.from_iterable(map(messages, (parsed.graph, *parsed.functions))):
        if each.DESCRIPTOR.name == "GraphProto":
            constants |= {tensor.name: _values(tensor) for tensor in each.initializer}
        elif each.DESCRIPTOR.name == "NodeProto":
            node = _node(each)
            nodes.append(node)
            if node.kind == "Constant" and node.outputs:
                constants[node.outputs[0]] = next(iter(node.attributes.values()), [])
    for node in nodes:
        yield from _judged(node, constants, opset)


def _node(message: Any) -> _Node:
    from firstline_core.runtime.onnx_file import text_of

    attributes = dict[str, list[int]]()
    for each in message.attribute:
        numbers = [each.i] if each.HasField("i") else [*each.ints, *_values(each.t)]
        # 0 may be left out of the file.
        attributes[each.name] = [0] if each.name == "axis" and not numbers else numbers
    kind, name = text_of(message.op_type), text_of(message.name)[:_NAME_CHARACTERS]
    return _Node(kind, name, [*message.input], [each for each in message.output if each], attributes)


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


def _values(tensor: Any) -> list[int]:
    """Returns the values of a tensor of a few integers or booleans; [] for another one."""
    dtype = {6: "<i4", 7: "<i8", 9: "?"}.get(tensor.data_type)
    if dtype is None:
        return []
    listed = [*tensor.int32_data[:_FEW], *tensor.int64_data[:_FEW]]
    return listed or list(np.frombuffer(tensor.raw_data, dtype)[:_FEW].tolist())
