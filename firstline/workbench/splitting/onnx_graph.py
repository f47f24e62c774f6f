"""Cuts an ONNX model in two with onnx's extractor."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from firstline.workbench.splitting.sweep import lone_tensors
from firstline_core.errors import ConfigError


def points(model: bytes, source: str, target: str) -> list[str]:
    """Returns the tensors at which the model can be cut, in the order of computation.

    Args:
        model: an ONNX file's content.
        source: its input.
        target: its output that counts.

    Raises:
        ConfigError: onnx is not installed, or the content is not an ONNX model.
    """
    graph = _inferred(model).graph
    typed = {one.name for one in graph.value_info}  # a tensor of unknown type cannot be an input
    nodes = [(_needs(node), [name for name in node.output if name]) for node in graph.node]
    return [name for name in lone_tensors(nodes, source, [target]) if name in typed]


def cut(model: bytes, tensor: str, source: str, target: str) -> tuple[bytes, bytes]:
    """Returns the two models of a cut.

    Args:
        model: an ONNX file's content.
        tensor: of `points`.
        source: its input.
        target: its output that counts.

    Returns:
        From `source` to `tensor`, and from there to `target`.

    Raises:
        ConfigError: onnx is not installed, or the model has no such tensor.
    """
    extractor = _onnx().utils.Extractor(_inferred(model))
    try:
        head, tail = extractor.extract_model([source], [tensor]), extractor.extract_model([tensor], [target])
    except ValueError as error:
        raise ConfigError(f"The model cannot be cut at '{tensor}': {error}.") from error
    return head.SerializeToString(), tail.SerializeToString()


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
        raise ConfigError(f"This is no ONNX model that onnx can read: {error}.") from error


def _onnx() -> Any:
    try:
        for part in ("onnx.utils", "onnx.shape_inference"):
            import_module(part)
        return import_module("onnx")
    except ImportError as error:
        raise ConfigError(f"Cutting ONNX models needs onnx ({error}): pip install 'firstline[compress]'.") from error
