"""Cuts channels of a convolutional ONNX model that only the next convolution reads.

These are inside residual blocks: the output of a convolution goes through elementwise operators to one other
convolution and nowhere else. Shortcuts and all shapes that two branches share stay unchanged. The result is an ordinary
dense model that is smaller and faster on any runtime; it has to be refitted (`refitting.py`) and trained
(`distillation.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import ConfigError

_ELEMENTWISE = frozenset({"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu"})


def prune_channels(model: Any, keep: float, *, multiple: int = 8) -> tuple[Any, int]:
    """Keeps the channels with the largest product of the L1 norms of their producing and reading weights.

    Li et al. 2017, "Pruning Filters for Efficient ConvNets", section 3, uses only the norm of the producing weights.

    Args:
        model: an ONNX model; it is not changed.
        keep: share of the channels, above 0 to 1.
        multiple: the number of channels is rounded up to a multiple of this, for vector units.

    Returns:
        The pruned model, and how many pairs of convolutions lost channels.

    Raises:
        ConfigError: `keep` out of range, or a model without such a pair.
    """
    if not 0 < keep <= 1:
        raise ConfigError(f"The share of channels to keep is above 0 to 1, not {keep:g}.")
    from onnx import ModelProto, numpy_helper

    pruned = ModelProto()
    pruned.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in pruned.graph.initializer}
    found = pairs(pruned.graph)
    if not found:
        raise ConfigError("The model has no pair of convolutions of which one alone reads the other; nothing to prune.")
    cut = 0
    for first, second in found:
        made, read = (numpy_helper.to_array(weights[node.input[1]]) for node in (first, second))
        wanted = min(len(made), math.ceil(len(made) * keep / multiple) * multiple)
        if wanted == len(made):
            continue
        kept = _heaviest(made, read, wanted)
        _replace(weights[first.input[1]], made[kept])
        _replace(weights[second.input[1]], read[:, kept])
        if len(first.input) > 2:
            _replace(weights[first.input[2]], numpy_helper.to_array(weights[first.input[2]])[kept])
        cut += 1
    del pruned.graph.value_info[:]  # the shapes in there are those of before
    return pruned, cut


def _heaviest(made: NDArray[np.float32], read: NDArray[np.float32], wanted: int) -> NDArray[np.intp]:
    """(wanted,) ascending positions."""
    weight = np.abs(made).reshape(len(made), -1).sum(axis=1) * np.abs(read).sum(axis=(0, *range(2, read.ndim)))
    found: NDArray[np.intp] = np.sort(np.argsort(-weight, kind="stable")[:wanted])
    return found


def pairs(graph: Any) -> list[tuple[Any, Any]]:
    """Returns convolutions with their only reader, in the graph's order."""
    weights = {tensor.name for tensor in graph.initializer}
    readers: dict[str, list[Any]] = defaultdict(list)
    uses: dict[str, int] = defaultdict(int)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
            uses[name] += 1
    outputs = {output.name for output in graph.output}

    def plain(node: Any) -> bool:
        """An ungrouped convolution whose weights are constants of its own."""
        group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        own = all(name in weights and uses[name] == 1 for name in node.input[1:])
        return node.op_type == "Conv" and group == 1 and own

    found = []
    for first in (node for node in graph.node if plain(node)):
        at = first.output[0]
        while at not in outputs and len(readers[at]) == 1 and readers[at][0].op_type in _ELEMENTWISE:
            at = readers[at][0].output[0]
        if at not in outputs and len(readers[at]) == 1 and plain(readers[at][0]) and readers[at][0].input[0] == at:
            found.append((first, readers[at][0]))
    return found


def _replace(tensor: Any, array: NDArray[np.float32]) -> None:
    from onnx import numpy_helper

    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
