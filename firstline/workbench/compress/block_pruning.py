"""Drops residual blocks of an ONNX model whose input can replace their output.

Without one block such a network answers nearly the same (Veit, Wilber and Belongie 2016, "Residual Networks Behave Like
Ensembles of Relatively Shallow Networks", section 4.1). Depth decides the latency: every block is four operators in
sequence, however few its channels. The remaining tensors keep the names of those that they replace, so that they can be
compared with the whole model's: see `refitting.py` and `distillation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.compress.intermediate import outputs
from firstline_core.errors import ConfigError
from firstline_core.types import Array


@dataclass(frozen=True, slots=True)
class Block:
    """A shortcut and the branch of operators that is added to it.

    Attributes:
        shortcut: the input tensor, which is also the other operand of the sum.
        sum: the output tensor, before any activation.
        after: output of the activation that is the only reader of the sum; "" without one.
        nodes: the block's nodes, by the tensor that each produces.
    """

    shortcut: str
    sum: str
    after: str
    nodes: frozenset[str]


def drop_blocks(
    model: Any,
    depth: float,
    rows: Array,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Any, tuple[str, ...]]:
    """Drops blocks one by one, each time the one that changes the answers least.

    Args:
        model: an ONNX model with logits as its only output; it is not changed.
        depth: share of the residual blocks to keep, above 0 to 1.
        rows: (n, ...) as the model takes them; no labels.
        progress: receives the number of dropped blocks and their total.

    Returns:
        The shorter model, and the sums of the blocks that were dropped.

    Raises:
        ConfigError: `depth` out of range, or a model without such a block.
    """
    if not 0 < depth <= 1:
        raise ConfigError(f"The share of residual blocks to keep is above 0 to 1, not {depth:g}.")
    found = blocks(model.graph)
    if not found:
        raise ConfigError("The model has no residual block that could be dropped.")
    name = model.graph.output[0].name
    wanted = _log_shares(outputs(model, rows, [name])[0])

    def change(shorter: Any) -> float:
        """Kullback-Leibler divergence of the mean row."""
        changed = _log_shares(outputs(shorter, rows, [name])[0])
        return float((np.exp(wanted) * (wanted - changed)).sum(axis=1).mean())

    dropped: list[str] = []
    total = len(found) - math.ceil(len(found) * depth)
    for done in range(total):
        tried = [(without(model, block), block.sum) for block in blocks(model.graph)]
        model, gone = min(tried, key=lambda one: change(one[0]))
        dropped.append(gone)
        progress(done + 1, total)
    return model, tuple(dropped)


def blocks(graph: Any) -> list[Block]:
    """Returns the blocks whose branch starts at the tensor that it is added to, in the graph's order."""
    makers = {name: node for node in graph.node for name in node.output}
    outside = {one.name for one in (*graph.output, *graph.input)}
    found = []
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for branch, shortcut in (node.input, reversed(node.input)):
            gone, at = {node.output[0]}, branch
            while at in makers and at != shortcut:
                gone.add(at)
                at = makers[at].input[0]
            if at != shortcut or branch == shortcut or shortcut not in makers:
                continue
            readers = [other for other in graph.node if node.output[0] in other.input]
            after = readers[0].output[0] if len(readers) == 1 and readers[0].op_type == "Relu" else ""
            inside = all(
                set(other.output) & (gone | {after}) or not set(other.input) & (gone - {node.output[0]})
                for other in graph.node
            )
            # Relu is idempotent, which other activations are not.
            if inside and not (gone | {shortcut, after}) & outside and (not after or _rectified(makers, shortcut)):
                found.append(Block(shortcut, node.output[0], after, frozenset(gone | ({after} - {""}))))
    return found


def without(model: Any, block: Block) -> Any:
    """Returns the model without the block; the preceding tensors get the block's names."""
    from onnx import ModelProto

    shorter = ModelProto()
    shorter.CopyFrom(model)
    graph = shorter.graph
    makers = {name: node for node in graph.node for name in node.output}
    renamed = {block.shortcut: block.after or block.sum}
    if block.after:
        renamed[makers[block.shortcut].input[0]] = block.sum
    for node in [node for node in graph.node if block.nodes & set(node.output)]:
        graph.node.remove(node)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    used = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)
    del graph.value_info[:]  # of what is gone
    return shorter


def _rectified(makers: dict[str, Any], name: str) -> bool:
    return name in makers and makers[name].op_type == "Relu"


def _log_shares(logits: Array) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True).astype(np.float64)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found
