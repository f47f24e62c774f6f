"""Places at which a model can be cut, and the two models of a cut.

A place is a tensor that alone crosses the cut. ONNX models are cut by onnx's extractor, TFLite models on their
flatbuffer, with the schema classes of ai-edge-litert: their operators are in the order of execution, and a half is the
same graph with fewer operators and another input or output, without the weights of the other half.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeVar

from firstline_core.errors import ConfigError

Tensor = TypeVar("Tensor", str, int)
_MAGIC = b"TFL3"


def lone_tensors(
    operators: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], source: Tensor, targets: Iterable[Tensor]
) -> list[Tensor]:
    """Returns the tensors that alone carry everything computed from the input so far, in the order of computation.

    A tensor is alive from the operator that makes it to the last one that needs it. A tensor that is alive alone is all
    that the rest needs. Tensors that do not depend on the input, such as weights, are ignored: either side of a cut can
    have them.

    Args:
        operators: inputs and outputs of each, in topological order.
        source: the graph's input.
        targets: its outputs.
    """
    wanted_at_last = list(targets)
    needed = Counter(tensor for needs, _ in operators for tensor in needs)
    needed.update(wanted_at_last)
    moving, alive, found = {source}, {source: needed[source]}, []
    for needs, makes in operators:
        taken = [tensor for tensor in needs if tensor in moving]
        if not taken:
            continue
        for tensor in taken:
            alive[tensor] -= 1
            if not alive[tensor]:
                del alive[tensor]
        moving.update(makes)
        alive.update({tensor: needed[tensor] for tensor in makes if needed[tensor]})
        if len(alive) == 1 and (only := next(iter(alive))) != source and only not in wanted_at_last:
            found.append(only)
    return list(dict.fromkeys(found))


def onnx_points(model: bytes, source: str, target: str) -> list[str]:
    """Returns the tensors at which the model can be cut, in the order of computation.

    Args:
        model: an ONNX file's content.
        source: its input; "" for the only one.
        target: its output that counts; "" for the first.

    Raises:
        ConfigError: onnx is not installed, or the content is not an ONNX model.
    """
    graph = _inferred(model).graph
    source, target = _ports(graph, source, target)
    typed = {one.name for one in graph.value_info}  # a tensor of unknown type cannot be an input
    nodes = [(_needs(node), [name for name in node.output if name]) for node in graph.node]
    return [name for name in lone_tensors(nodes, source, [target]) if name in typed]


def onnx_cut(model: bytes, tensor: str, source: str, target: str) -> tuple[bytes, bytes]:
    """Returns the two models of a cut.

    Args:
        model: an ONNX file's content.
        tensor: of `onnx_points`.
        source: its input; "" for the only one.
        target: its output that counts; "" for the first.

    Returns:
        From `source` to `tensor`, and from there to `target`.

    Raises:
        ConfigError: onnx is not installed, or the model has no such tensor.
    """
    inferred = _inferred(model)
    extractor, (source, target) = _onnx().utils.Extractor(inferred), _ports(inferred.graph, source, target)
    try:
        head, tail = extractor.extract_model([source], [tensor]), extractor.extract_model([tensor], [target])
    except ValueError as error:
        raise ConfigError(f"The model cannot be cut at '{tensor}': {error}.") from error
    return head.SerializeToString(), tail.SerializeToString()


def _ports(graph: Any, source: str, target: str) -> tuple[str, str]:
    weights = {tensor.name for tensor in graph.initializer}
    return source or next(one.name for one in graph.input if one.name not in weights), target or graph.output[0].name


def _needs(node: Any) -> list[str]:
    """The inputs of a node, including outer tensors that graphs inside it (of If and Loop) use."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {name for inner in graph.node for name in inner.output} | {one.name for one in graph.input}
            names += [name for inner in graph.node for name in _needs(inner) if name not in own]
            names += [one.name for one in graph.output if one.name not in own]
    return names


def _inferred(model: bytes) -> Any:
    onnx = _onnx()
    unreadable = (onnx.shape_inference.InferenceError, import_module("google.protobuf.message").DecodeError)
    try:
        return onnx.shape_inference.infer_shapes(onnx.load_model_from_string(model))
    except unreadable as error:
        raise ConfigError(f"This is not an ONNX model: {error}.") from error


def _onnx() -> Any:
    try:
        for part in ("onnx.utils", "onnx.shape_inference"):
            import_module(part)
        return import_module("onnx")
    except ImportError as error:
        raise ConfigError(f"Cutting ONNX models needs onnx ({error}): pip install 'firstline[compress]'.") from error


def tflite_points(model: bytes) -> list[str]:
    """Returns the tensors at which the model can be cut, in the order of computation.

    Args:
        model: a TFLite file's content.

    Raises:
        ConfigError: ai-edge-litert is not installed, or the model has several graphs or inputs.
    """
    graph = _parsed(model).subgraphs[0]
    operators = [
        ([int(index) for index in one.inputs if index >= 0], [int(index) for index in one.outputs])
        for one in graph.operators
    ]
    found = lone_tensors(operators, int(graph.inputs[0]), [int(index) for index in graph.outputs])
    return [_name(graph, index) for index in found]


def tflite_cut(model: bytes, tensor: str) -> tuple[bytes, bytes]:
    """Returns the two models of a cut.

    Args:
        model: a TFLite file's content.
        tensor: of `tflite_points`.

    Returns:
        From the input to `tensor`, and from there to the outputs.

    Raises:
        ConfigError: ai-edge-litert is not installed, or the model has no such tensor.
    """
    graph = _parsed(model).subgraphs[0]
    named = [index for index in range(len(graph.tensors)) if _name(graph, index) == tensor]
    made = [
        position for position, operator in enumerate(graph.operators) if set(named) & set(map(int, operator.outputs))
    ]
    if len(named) != 1 or len(made) != 1:
        raise ConfigError(f"The model has {len(made)} operators that make a tensor '{tensor}'; a cut needs one.")
    return _half(model, slice(made[0] + 1), None, named[0]), _half(model, slice(made[0] + 1, None), named[0], None)


def _half(model: bytes, operators: slice, source: int | None, target: int | None) -> bytes:
    parsed = _parsed(model)
    graph = parsed.subgraphs[0]
    graph.operators = graph.operators[operators]
    if source is not None:
        graph.inputs = [source]
    if target is not None:
        graph.outputs = [target]
    # They describe inputs and outputs that are no longer valid.
    parsed.signatureDefs, parsed.metadata, parsed.metadataBuffer = [], [], []
    used = {0}  # by convention empty
    kept: dict[int, int] = {}
    for operator in graph.operators:
        for index in (*operator.inputs, *operator.outputs, *(operator.intermediates or ())):
            if index >= 0:
                kept.setdefault(int(index), len(kept))
    for index in (*graph.inputs, *graph.outputs):
        kept.setdefault(int(index), len(kept))
    graph.tensors = [graph.tensors[index] for index in kept]
    used.update(tensor.buffer for tensor in graph.tensors)
    for operator in graph.operators:
        for field in ("inputs", "outputs", "intermediates"):
            if (named := getattr(operator, field)) is not None:
                setattr(operator, field, [kept[int(index)] if index >= 0 else -1 for index in named])
    graph.inputs, graph.outputs = ([kept[int(index)] for index in ports] for ports in (graph.inputs, graph.outputs))
    for position, buffer in enumerate(parsed.buffers):
        if position not in used:
            buffer.data = None
    builder = import_module("flatbuffers").Builder(len(model))
    builder.Finish(parsed.Pack(builder), _MAGIC)
    return bytes(builder.Output())


def _name(graph: Any, index: int) -> str:
    name = graph.tensors[index].name or b""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _parsed(model: bytes) -> Any:
    try:
        schema = import_module("ai_edge_litert.schema_py_generated")
    except ImportError as error:
        raise ConfigError(
            f"Cutting TFLite models needs ai-edge-litert ({error}): pip install 'firstline[litert]'."
        ) from error
    try:
        parsed = schema.ModelT.InitFromPackedBuf(model)
        graphs = parsed.subgraphs or []
        inputs = graphs[0].inputs if graphs else []
    except (struct.error, IndexError, ValueError, TypeError, AttributeError) as error:  # anywhere in the file
        raise ConfigError(f"This is not a TFLite model: {error}.") from error
    if len(graphs) != 1 or len(inputs) != 1:
        raise ConfigError(f"The model has {len(graphs)} graphs and {len(inputs)} inputs; one of each can be cut.")
    return parsed
