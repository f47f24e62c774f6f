"""Triton's classification extension: the most likely classes of an output as strings.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.tensors import shown
from firstline_core.types import Tensor


def classified(tensor: Tensor, count: int, labels: Sequence[str]) -> Tensor:
    """Returns the `count` most likely classes of each row, most likely first, as "VALUE:INDEX:LABEL".

    Args:
        tensor: numbers, (rows, classes).
        count: at least 1; limited to the number of classes.
        labels: by index; a class without label is "VALUE:INDEX".

    Returns:
        BYTES, (rows, at most `count`).

    Raises:
        InvalidTensorError: the output has no classes.
    """
    if tensor.array.ndim != 2 or tensor.array.dtype.kind not in "iuf":
        raise InvalidTensorError(
            f"Output {shown(tensor.name)} is {tensor.datatype} of shape {list(tensor.shape)}, so it has no classes; "
            "ask for it without 'classification'."
        )
    likeliest = np.argsort(-tensor.array.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = np.empty(likeliest.shape, np.object_)
    for row, classes in enumerate(likeliest):
        texts[row] = [_text(float(tensor.array[row, index]), int(index), labels) for index in classes]
    return Tensor(tensor.name, texts)


def _text(value: float, index: int, labels: Sequence[str]) -> bytes:
    text = f"{value:.6f}:{index}"  # formatted like C++'s std::to_string, which Triton uses
    return (f"{text}:{labels[index]}" if index < len(labels) else text).encode()
