"""Scores: how sure the edge model is of its own answer. A higher score always means "keep"."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError

Probabilities = NDArray[np.float32]
Scores = NDArray[np.float32]

Kind = Literal["max_probability", "margin", "entropy"]

_LEAST = np.float32(1e-7)
"""Of so many a loop finds the score of one row sooner than numpy."""


def temper(probabilities: Probabilities, temperature: float) -> Probabilities:
    """Temperature scaling (Guo et al. 2017, "On Calibration of Modern Neural Networks") of finished probabilities.

    softmax(log p / T) equals softmax(logits / T), so it needs no logits. A quantised softmax rounds its tails to
    zero; they are lifted to 1e-7, which keeps the logarithm finite and the order as it was.

    Args:
        probabilities: (n, classes) in [0, 1]; rows need not sum to 1.
        temperature: above 1 flattens, below 1 sharpens, 1 only normalises the rows.

    Returns:
        (n, classes) float32, rows sum to 1.
    """
    # In double precision, so that whichever way a score is found it is rounded once: rows that tie have to tie with
    # the threshold on every way, and an overconfident model's ties are a large share of its rows.
    tempered = np.maximum(probabilities, _LEAST, dtype=np.float32).astype(np.float64)
    if temperature != 1.0:
        np.log(tempered, out=tempered)
        tempered /= temperature
        tempered -= np.maximum.reduce(tempered, axis=-1, keepdims=True)
        np.exp(tempered, out=tempered)
    tempered /= np.add.reduce(tempered, axis=-1, keepdims=True)
    return tempered.astype(np.float32)


def max_probability(probabilities: Probabilities) -> Scores:
    """The likeliest class's probability, (n,) in [0, 1]."""
    best: Scores = np.maximum.reduce(probabilities, axis=-1)
    return best


def margin(probabilities: Probabilities) -> Scores:
    """Gap between the two likeliest classes, (n,) in [0, 1]; 0 for a tie."""
    top = np.partition(probabilities, -2, axis=-1)[:, -2:]
    gap: Scores = top[:, 1] - top[:, 0]
    return gap


def entropy(probabilities: Probabilities) -> Scores:
    """One minus the entropy over log(classes), (n,) in [0, 1]; 0 for a uniform row."""
    # 0 log 0 is 0; NaN stays NaN, because a row of NaN must not look certain.
    terms = probabilities * np.log(np.where(probabilities > 0, probabilities, 1.0))
    certainty = 1.0 + terms.sum(axis=-1) / np.log(probabilities.shape[-1])
    clipped: Scores = np.clip(certainty, 0.0, 1.0).astype(np.float32)
    return clipped


_SCORES = {"max_probability": max_probability, "margin": margin, "entropy": entropy}


def score(kind: Kind, probabilities: Probabilities, temperature: float = 1.0) -> Scores:
    """Scores each row after temperature scaling.

    Args:
        kind: which score.
        probabilities: (n, classes) float32.
        temperature: see `temper`.

    Returns:
        (n,) float32 in [0, 1]; higher means keep.

    Raises:
        InvalidTensorError: not a matrix, or fewer than two classes.
    """
    if probabilities.ndim != 2 or probabilities.shape[1] < 2:
        raise InvalidTensorError(
            f"A score needs probabilities of shape [rows, classes >= 2], got {list(probabilities.shape)}."
        )
    return _SCORES[kind](temper(probabilities, temperature))


def energy(logits: Probabilities, temperature: float = 1.0) -> Scores:
    """Negative free energy T log sum exp(logits / T): large where the model has seen the like.

    Liu et al. 2020, "Energy-based Out-of-distribution Detection", with the sign that makes higher mean keep. It needs
    logits; a softmax has forgotten it.

    Args:
        logits: (n, classes).
        temperature: above 0.

    Returns:
        (n,) float32, unbounded.
    """
    scaled = logits / np.float32(temperature)
    highest = scaled.max(axis=-1)
    summed = np.log(np.exp(scaled - highest[..., None]).sum(axis=-1))
    found: Scores = (np.float32(temperature) * (highest + summed)).astype(np.float32)
    return found


def auroc(scores: NDArray[np.floating], failed: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve of "a lower score fails": the chance that a failed row scores below one that did not.

    By ranks (Mann and Whitney 1947); equal scores count one half.

    Args:
        scores: (n,), higher means keep.
        failed: (n,), such as "edge disagrees with full".

    Returns:
        1 for a perfect order, 0.5 for a useless one; None where none failed, or all did.
    """
    bad = int(failed.sum())
    good = len(failed) - bad
    if not bad or not good:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[~failed].sum() - good * (good + 1) / 2) / (bad * good))
