"""Decodes the output of models of text that were trained with CTC (Graves et al., 2006), greedily. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.processing.compile import softmax
from firstline_core.processing.steps import Ctc
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, Arrays, object_array

MEAN, LOWEST = "mean_probability", "lowest_probability"
"""The evidence of texts, FP32 (n,): the geometric mean of the probabilities of a text's tokens, and the lowest one."""

Decode = Callable[[Array, int, str], tuple[Array, Arrays]]
"""From a model's output, the number of rows and the model's name to the texts, UTF-8 (n,), and their evidence.

Raises:
    InferenceError: the output has another form.
"""

_ORDER = {"ntc": (0, 1, 2), "tnc": (1, 0, 2), "nct": (0, 2, 1)}
_LEAST = 1e-7
_ROUNDED = 0.02  # of the probabilities of quantised models


def read_table(content: bytes, name: str) -> tuple[str, ...]:
    """Returns the symbols of a file, one per line; an empty line is the space.

    Raises:
        ModelLoadError: not UTF-8, or no symbols.
    """
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"The symbols {name} are not UTF-8 text, one symbol a line.") from error
    symbols = tuple(line.removesuffix("\r") or " " for line in lines)
    if not content.strip():
        raise ModelLoadError(f"The symbols {name} have no line.")
    return symbols


def compile_ctc(step: Ctc, content: bytes, *, logits: bool) -> Decode:
    """Returns the function of a step. The tokens are symbols; the evidence of an empty text is that of its blanks.

    Args:
        step: the step.
        content: of its file.
        logits: whether the model gives logits of the symbols instead of probabilities.

    Raises:
        ModelLoadError: the file is not a list of symbols.
    """
    symbols = read_table(content, step.artefact.file)
    count = len(symbols) + 1
    blank = count - 1 if step.blank == -1 else step.blank
    if blank >= count:
        raise ModelLoadError(f"Postprocessing: ctc has the blank {blank}, but there are {count} classes with it.")
    classes = [*symbols[:blank], "", *symbols[blank:]]

    def decode(output: Array, rows: int, what: str) -> tuple[Array, Arrays]:
        ordered = _ordered(np.asarray(output, np.float32), step, rows)
        if ordered.shape[2] != count:
            raise InferenceError(
                f"The model gave {ordered.shape[2]} classes, but {step.artefact.file} has {len(symbols)} symbols, and "
                "there is one blank; correct the file, or the order of the axes."
            )
        if logits:
            ordered = softmax(ordered)
        if not np.isfinite(ordered).all():
            raise InferenceError(f"{what} gave NaN or infinity.")
        if ordered.min() < -_ROUNDED or ordered.max() > 1 + _ROUNDED:
            raise InferenceError(f"{what} gave numbers that are not probabilities; add softmax before ctc.")
        likeliest = ordered.argmax(axis=2)
        certainty = np.maximum(ordered.max(axis=2), _LEAST)
        decoded = [_row(*each, classes, blank) for each in zip(likeliest, certainty, strict=True)]
        texts = object_array([text for text, _, _ in decoded])
        figures = np.array([each[1:] for each in decoded], np.float32).reshape(rows, 2)
        return texts, {MEAN: figures[:, 0], LOWEST: figures[:, 1]}

    return decode


def _ordered(output: Array, step: Ctc, rows: int) -> Array:
    """Returns (rows, time, classes)."""
    if output.ndim != 3:
        raise InferenceError(f"The step ctc reads three axes, but the model gave {list(output.shape)}.")
    if step.axes == "tnc" and output.shape[1] == 1 and rows > 1:  # rows that ran one after the other
        ordered = output.reshape(rows, -1, output.shape[2])
    else:
        ordered = output.transpose(_ORDER[step.axes])
    if len(ordered) != rows or not ordered.shape[1]:
        raise InferenceError(
            f"The model gave {list(output.shape)} for {counted(rows, 'row')}; name the order "
            "of its axes in the step ctc."
        )
    return ordered


def _row(
    likeliest: NDArray[np.int64], certainty: NDArray[np.float32], classes: Sequence[str], blank: int
) -> tuple[bytes, float, float]:
    """Returns the text of one row, and the mean and the lowest probability of its symbols."""
    starts = np.flatnonzero(np.diff(likeliest, prepend=-1))
    runs = [
        (likeliest[start], certainty[start:end].max())
        for start, end in zip(starts, [*starts[1:], len(likeliest)], strict=True)
    ]
    symbols = [(classes[symbol], sure) for symbol, sure in runs if symbol != blank]
    sures = np.array([sure for _, sure in symbols] or certainty, np.float64)
    text = "".join(symbol for symbol, _ in symbols)
    return text.encode(), float(np.exp(np.log(sures).mean())), float(sures.min())
