"""Refits a cut model without training: each reading convolution is fitted to the whole model's output there.

He, Zhang and Sun 2017, "Channel Pruning for Accelerating Very Deep Neural Networks", sections 3.1 and 3.2: least
squares, layer by layer, on the inputs that the cut model produces. If the output is added to a shortcut, the sum is
fitted, which also compensates for drift of the shortcut and for dropped blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.compress.channel_pruning import pairs
from firstline.workbench.compress.intermediate import outputs
from firstline_core.types import Array

_PLACES = 20
_RIDGE = 1e-4  # of the mean square of what is read


def refit(
    pruned: Any,
    whole: Any,
    rows: Array,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """Fits weights and bias of each convolution that is the only reader of another one.

    Args:
        pruned: an ONNX model of `pruning.prune_channels` or `shortening.drop_blocks`; it is not changed.
        whole: the model before the cut.
        rows: (n, ...) as the models take them, without labels; 20 places of each are used.
        seed: of the places.
        progress: receives the number of fitted convolutions and their total.
    """
    from onnx import ModelProto, numpy_helper

    mended = ModelProto()
    mended.CopyFrom(pruned)
    random = np.random.default_rng(seed)
    constants = {tensor.name: tensor for tensor in mended.graph.initializer}
    found = [second for _, second in pairs(mended.graph) if len(second.input) == 3 and _dense(second)]
    for done, node in enumerate(found, start=1):
        added, beside = _added(mended.graph, node)
        read, *shortcut = outputs(mended, rows, [node.input[0], *beside])
        wanted = outputs(whole, rows, [added])[0]
        kernel = numpy_helper.to_array(constants[node.input[1]])
        weights, bias = _fitted(read, wanted - sum(shortcut), node, kernel.shape, random)
        for name, array in zip(node.input[1:], (weights, bias), strict=True):
            constants[name].CopyFrom(numpy_helper.from_array(array, name))
        progress(done, len(found))
    return mended


def _fitted(
    read: Array, wanted: Array, node: Any, shape: Sequence[int], random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights [out, in, h, w] and bias [out] of the least squared error at random places of every row."""
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    top, left, bottom, right = given.get("pads", [0, 0, 0, 0])
    down, across = given.get("strides", [1, 1])
    padded = np.pad(read, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(shape[2:]), axis=(2, 3))[:, :, ::down, ::across]
    row = np.repeat(np.arange(len(read)), _PLACES)
    y, x = (random.integers(0, size, len(row)) for size in wanted.shape[2:])
    seen = windows[row, :, y, x].reshape(len(row), -1).astype(np.float64)
    target = wanted[row, :, y, x].astype(np.float64)
    centre, middle = seen.mean(axis=0), target.mean(axis=0)
    seen -= centre
    square = seen.T @ seen
    square[np.diag_indices_from(square)] += _RIDGE * np.trace(square) / len(square) + 1e-12
    weights = np.linalg.solve(square, seen.T @ (target - middle)).T
    return weights.reshape(shape).astype(np.float32), (middle - weights @ centre).astype(np.float32)


def _dense(node: Any) -> bool:
    """Whether `_fitted` supports the convolution's windows."""
    given = {attribute.name: attribute for attribute in node.attribute}
    dilated = "dilations" in given and any(step != 1 for step in given["dilations"].ints)
    return not dilated and ("auto_pad" not in given or given["auto_pad"].s in (b"", b"NOTSET"))


def _added(graph: Any, node: Any) -> tuple[str, list[str]]:
    """The sum of the output with a shortcut, and the shortcut; without one the output itself."""
    readers = [other for other in graph.node if node.output[0] in other.input]
    constants = {tensor.name for tensor in graph.initializer}
    if len(readers) != 1 or readers[0].op_type != "Add" or constants & set(readers[0].input):
        return node.output[0], []
    return readers[0].output[0], [name for name in readers[0].input if name != node.output[0]]
