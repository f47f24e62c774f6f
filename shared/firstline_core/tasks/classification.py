"""Classification: the output `probabilities`, FP32 [rows, labels], and what it must satisfy. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.errors import InferenceError
from firstline_core.types import PROBABILITIES, Tensor

# A quantised softmax of ten labels sums to 0.91 or more; a sum over 1 comes from rounding alone.
_LEAST_SUM, _MOST_SUM = 0.85, 1.05
# Half a step of a softmax in eight bits: what rounding changes in one label.
_HALF_STEP = 1 / 512
# Rounding of 32-bit arithmetic: a dequantised 255 x (1 / 255) is slightly above 1.
_SLACK = 1e-6


class Outputs(Struct, frozen=True):
    """The declared output of a classifier.

    Args:
        labels: number of labels.
        least_sum: of a row's probabilities.
        most_sum: of a row's probabilities.
    """

    labels: int
    least_sum: float = 0.0
    most_sum: float = np.inf


def single_label(labels: int, *, rounded: bool = False, cut: bool = False) -> Outputs:
    """Returns the output of a classifier whose labels exclude each other: a row's probabilities sum to about 1.

    Args:
        labels: number of labels.
        rounded: whether each probability may be rounded to eight bits. With a thousand labels, rounding to 0 alone can
            take most of the sum.
        cut: whether some of the model's classes are left out, such as a background class; they may have any share.
    """
    rounding = labels * _HALF_STEP if rounded else 0.0
    return Outputs(labels, 0.0 if cut else min(_LEAST_SUM, 1 - rounding), max(_MOST_SUM, 1 + rounding))


def independent(labels: int) -> Outputs:
    """Returns the output of a classifier of independent labels, each with a probability of its own."""
    return Outputs(labels)


def check(outputs: Sequence[Tensor], declared: Outputs, rows: int) -> NDArray[np.float32]:
    """Returns the probabilities if the outputs are as declared.

    Args:
        outputs: of one answer.
        declared: the declaration.
        rows: number of rows.

    Returns:
        FP32 (rows, labels).

    Raises:
        InferenceError: no such output, another datatype or shape, or a value that `fault` names.
    """
    found = next((tensor.array for tensor in outputs if tensor.name == PROBABILITIES), None)
    if found is None or found.dtype != np.float32 or found.shape != (rows, declared.labels):
        got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise InferenceError(f"'{PROBABILITIES}' is {got}, expected float32 {[rows, declared.labels]}.")
    if problem := fault(found, declared):
        raise InferenceError(f"'{PROBABILITIES}' has {problem}.")
    return found


def fault(probabilities: NDArray[np.float32], declared: Outputs) -> str:
    """Returns what is wrong with the values, as a noun; "" if nothing is.

    Values must be finite and in [0, 1], and each row must sum to a value within the declared limits.

    Args:
        probabilities: FP32 (rows, labels), at least one row.
        declared: the declaration.
    """
    # NaN fails every comparison. One pass each, without a temporary array: this runs for every request.
    lowest, highest = np.minimum.reduce(probabilities, axis=None), np.maximum.reduce(probabilities, axis=None)
    if lowest >= -_SLACK and highest <= 1 + _SLACK:
        sums = np.add.reduce(probabilities, axis=1)
        least, most = (sums[0], sums[0]) if len(sums) == 1 else (np.minimum.reduce(sums), np.maximum.reduce(sums))
        if declared.least_sum <= least and most <= declared.most_sum:
            return ""
    return _described(probabilities, declared)


def _described(probabilities: NDArray[np.float32], declared: Outputs) -> str:
    count = len(probabilities)
    finite = np.isfinite(probabilities).all(axis=1)
    if not finite.all():
        return f"NaN or infinity for {count - int(finite.sum())} of {count} rows"
    outside = ((probabilities < -_SLACK) | (probabilities > 1 + _SLACK)).any(axis=1)
    if outside.any():
        least, most = probabilities.min(), probabilities.max()
        return f"values from {least:.3g} to {most:.3g} for {int(outside.sum())} of {count} rows, outside of 0 to 1"
    sums = probabilities.sum(axis=1)
    worst = sums[np.argmax(np.maximum(declared.least_sum - sums, sums - declared.most_sum))]
    return (
        f"a row that sums to {worst:.3g}, outside of {declared.least_sum:.3g} to {declared.most_sum:.3g}, although its "
        "labels exclude each other"
    )
