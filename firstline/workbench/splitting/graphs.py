"""Places at which an ONNX model can be cut, and the two models of a cut, made by onnx's extractor.

A place is a tensor that alone crosses the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firstline_core.errors import ConfigError


def lone_tensors(
    operators: Sequence[tuple[Sequence[str], Sequence[str]]], source: str, targets: Sequence[str]
) -> list[str]:
    """Returns the tensors that alone carry everything computed from the input so far, in the order of computation.

    A tensor is alive from the operator that makes it to the last one that needs it. A tensor that is alive alone is all
    that the rest needs. Tensors that do not depend on the input, such as weights, are ignored: either side of a cut can
    have them.

    Args:
        operators: inputs and outputs of each, in topological order.
        source: the graph's input.
        targets: its outputs.
    """
    moving, last = {source}, dict[str, int]()  # tensors that depend on the input, and the operator that needs each last
    for at, (needs, makes) in enumerate(operators):
        if taken := moving.intersection(needs):
            moving.update(makes)
            last |= dict.fromkeys(taken, at)
    last |= dict.fromkeys(targets, len(operators))
    alive, found = {source}, list[str]()
    for at, (_, makes) in enumerate(operators):
        alive = {tensor for tensor in alive.union(moving.intersection(makes)) if last.get(tensor, -1) > at}
        if len(alive) == 1 and alive.isdisjoint((source, *targets)):
            found += alive
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
    from onnx.utils import Extractor

    extractor, (source, target) = Extractor(inferred), _ports(inferred.graph, source, target)
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
    try:
        from google.protobuf.message import DecodeError
        from onnx import load_model_from_string, shape_inference
    except ImportError as error:
        raise ConfigError(f"Cutting ONNX models needs onnx ({error}): pip install 'firstline[compress]'.") from error
    try:
        return shape_inference.infer_shapes(load_model_from_string(model))
    except (shape_inference.InferenceError, DecodeError) as error:
        raise ConfigError(f"This is not an ONNX model: {error}.") from error
