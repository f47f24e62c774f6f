"""Takes whole residual blocks out of an ONNX model, where what comes in may stand for what goes out.

Veit, Wilber and Belongie 2016, "Residual Networks Behave Like Ensembles of Relatively Shallow Networks", section 4.1:
without one block such a network says nearly the same. Depth is what a request waits for: every block is four operators
in a row, however few its channels. What is left keeps the names of what it stands for, so that it can be compared with
the whole model tensor by tensor: see `reconstruction.py` and `distilling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.compress.inside import outputs
from firstline_core.errors import ConfigError
from firstline_core.types import Array


@dataclass(frozen=True, slots=True)
class Block:
    """A shortcut, and the branch of operators in a row that is added to it.

    Attributes:
        shortcut: the tensor that goes in, the sum's other side.
        sum: the tensor that comes out, before any activation.
        after: the activation that alone reads the sum, by its output; empty where there is none.
        nodes: that go with it, by the tensor that each makes.
    """

    shortcut: str
    sum: str
    after: str
    nodes: frozenset[str]


def shorten(
    model: Any,
    depth: float,
    rows: Array,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Any, tuple[str, ...]]:
    """Drops, one after the other, the block without which the model says most nearly what the whole one says.

    Args:
        model: an ONNX model with logits as its only output; it is not changed.
        depth: share of the residual blocks to keep, above 0 to 1.
        rows: (n, ...) as the model takes them; no labels.
        progress: told how many blocks are gone, of how many.

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
        """Kullback and Leibler's divergence, of the mean row."""
        said = _log_shares(outputs(shorter, rows, [name])[0])
        return float((np.exp(wanted) * (wanted - said)).sum(axis=1).mean())

    dropped: list[str] = []
    total = len(found) - math.ceil(len(found) * depth)
    for done in range(total):
        tried = [(without(model, block), block.sum) for block in blocks(model.graph)]
        model, gone = min(tried, key=lambda one: change(one[0]))
        dropped.append(gone)
        progress(done + 1, total)
    return model, tuple(dropped)


def blocks(graph: Any) -> list[Block]:
    """Those whose branch starts at the very tensor that it is added to, in the graph's order."""
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
            # a rectified tensor is what it was after another Relu; of other activations that does not hold
            if inside and not (gone | {shortcut, after}) & outside and (not after or _rectified(makers, shortcut)):
                found.append(Block(shortcut, node.output[0], after, frozenset(gone | ({after} - {""}))))
    return found


def without(model: Any, block: Block) -> Any:
    """The model without the block; what came before it bears its names."""
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
