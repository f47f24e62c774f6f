"""Finds where a graph of operators narrows to one tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

Tensor = TypeVar("Tensor", str, int)


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
