"""Cuts a TFLite model in two on its flatbuffer, with the schema classes of ai-edge-litert.

The operators of a TFLite graph are in the order of execution, and its tensors have their final shapes and quantisation.
A half is the same graph with fewer operators and another input or output, without the weights of the other half.
"""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

from firstline.workbench.splitting.sweep import lone_tensors
from firstline_core.errors import ConfigError

_MAGIC = b"TFL3"


def points(model: bytes) -> list[str]:
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


def cut(model: bytes, tensor: str) -> tuple[bytes, bytes]:
    """Returns the two models of a cut.

    Args:
        model: a TFLite file's content.
        tensor: of `points`.

    Returns:
        From the input to `tensor`, and from there to the outputs.

    Raises:
        ConfigError: ai-edge-litert is not installed, or the model has no such tensor.
    """
    graph = _parsed(model).subgraphs[0]
    named = [index for index in range(len(graph.tensors)) if _name(graph, index) == tensor]
    made = [at for at, operator in enumerate(graph.operators) if set(named) & set(map(int, operator.outputs))]
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
    for at, buffer in enumerate(parsed.buffers):
        if at not in used:
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
        raise ConfigError(f"This is no TFLite model: {error}.") from error
    if len(graphs) != 1 or len(inputs) != 1:
        raise ConfigError(f"The model has {len(graphs)} graphs and {len(inputs)} inputs; one of each can be cut.")
    return parsed
