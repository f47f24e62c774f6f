"""Confidence scores: simple ones, and a learned model of P(edge wrong and cloud right | features).

A higher score means that the edge answer is more likely to be accepted. The workbench fits the learned model; applying
it needs numpy only, so that the device needs no learning library.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InvalidTensorError

Probabilities = NDArray[np.float32]
Scores = NDArray[np.float32]

Kind = Literal["max_probability", "margin", "entropy", "energy"]

_LEAST = np.float32(1e-7)
"""Of so many a loop finds the score of one row sooner than numpy."""


def temper(probabilities: Probabilities, temperature: float) -> Probabilities:
    """Applies temperature scaling (Guo et al. 2017, "On Calibration of Modern Neural Networks") to probabilities.

    softmax(log p / T) equals softmax(logits / T), so no logits are needed. A quantised softmax rounds its tails to
    zero; they are raised to 1e-7, which keeps the logarithm finite and the order unchanged.

    Args:
        probabilities: (n, classes) in [0, 1]; rows need not sum to 1.
        temperature: above 1 flattens, below 1 sharpens, 1 only normalises the rows.

    Returns:
        (n, classes) float32, rows sum to 1.
    """
    # In double precision, so that scores are rounded once: equal rows must get equal scores, because ties are a large
    # share of an overconfident model's rows.
    tempered = np.maximum(probabilities, _LEAST, dtype=np.float32).astype(np.float64)
    if temperature != 1.0:
        np.log(tempered, out=tempered)
        tempered /= temperature
        tempered -= np.maximum.reduce(tempered, axis=-1, keepdims=True)
        np.exp(tempered, out=tempered)
    tempered /= np.add.reduce(tempered, axis=-1, keepdims=True)
    return tempered.astype(np.float32)


def max_probability(probabilities: Probabilities) -> Scores:
    """Returns the highest probability, (n,) in [0, 1]."""
    best: Scores = np.maximum.reduce(probabilities, axis=-1)
    return best


def margin(probabilities: Probabilities) -> Scores:
    """Returns the gap between the two most likely classes, (n,) in [0, 1]; 0 for a tie."""
    top = np.partition(probabilities, -2, axis=-1)[:, -2:]
    gap: Scores = top[:, 1] - top[:, 0]
    return gap


def entropy(probabilities: Probabilities) -> Scores:
    """Returns one minus the entropy divided by log(classes), (n,) in [0, 1]; 0 for a uniform row."""
    # 0 log 0 is 0; NaN stays NaN, because a row with NaN must not look certain.
    terms = probabilities * np.log(np.where(probabilities > 0, probabilities, 1.0))
    certainty = 1.0 + terms.sum(axis=-1) / np.log(probabilities.shape[-1])
    clipped: Scores = np.clip(certainty, 0.0, 1.0).astype(np.float32)
    return clipped


_SCORES = {"max_probability": max_probability, "margin": margin, "entropy": entropy}


def score(
    kind: Kind, probabilities: Probabilities, logits: Probabilities | None = None, *, temperature: float = 1.0
) -> Scores:
    """Scores each row after temperature scaling.

    Args:
        kind: of the score.
        probabilities: (n, classes) float32.
        logits: (n, classes), the input of the softmax step; only "energy" needs them.
        temperature: see `temper`.

    Returns:
        (n,) float32, higher means more certain; in [0, 1], except for "energy".

    Raises:
        InvalidTensorError: not a matrix, fewer than two classes, or missing logits.
    """
    if kind == "energy":
        if logits is None:
            raise InvalidTensorError("The score 'energy' needs logits; this model shows none.")
        return energy(logits, temperature)
    if probabilities.ndim != 2 or probabilities.shape[1] < 2:
        raise InvalidTensorError(
            f"A score needs probabilities of shape [rows, classes >= 2], got {list(probabilities.shape)}."
        )
    return _SCORES[kind](temper(probabilities, temperature))


def energy(logits: Probabilities, temperature: float = 1.0) -> Scores:
    """Returns the negative free energy T log sum exp(logits / T), which is large for inputs like the training data.

    Liu et al. 2020, "Energy-based Out-of-distribution Detection", with the sign for which higher means more certain. It
    needs logits, because a softmax discards it.

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
    """Returns the area under the ROC curve: the probability that a failed row has a lower score than a successful one.

    Computed from ranks (Mann and Whitney 1947); equal scores count one half.

    Args:
        scores: (n,), higher means more certain.
        failed: (n,), such as "edge disagrees with full".

    Returns:
        1 for a perfect order, 0.5 for a random one; None if no row or every row failed.
    """
    bad = int(failed.sum())
    good = len(failed) - bad
    if not bad or not good:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[~failed].sum() - good * (good + 1) / 2) / (bad * good))


MEASURES = 4
"""Number of the first columns of `features`, which are measures; the others are classes."""

_CLASSES_AT_MOST = 64  # above this, no selection part has enough rows of each class

_SMALLEST = np.float32(1 / 512)  # half a step of a quantised softmax, as the lower bound of its zeros


def feature_count(classes: int) -> int:
    """Returns the number of columns of `features`."""
    return MEASURES + (classes if classes <= _CLASSES_AT_MOST else 0)


def features(probabilities: Probabilities) -> NDArray[np.float32]:
    """Returns the inputs of the score: confidence measures and the predicted class.

    The class matters if a quantised softmax saturates: a quarter of the answers may share one margin, although the edge
    model is wrong ten times as often for one class as for another.

    Args:
        probabilities: (n, classes), classes >= 2.

    Returns:
        (n, 4) margin, certainty (one minus the entropy) and the logarithms of the two highest probabilities; then, for
        up to 64 classes, the one-hot predicted class.
    """
    rows = temper(probabilities, 1.0)
    top = np.sort(np.partition(rows, -2, axis=-1)[:, -2:], axis=-1)
    found = [top[:, 1] - top[:, 0], entropy(rows), np.log(np.maximum(top, _SMALLEST))]
    if rows.shape[1] <= _CLASSES_AT_MOST:
        found.append(np.eye(rows.shape[1], dtype=np.float32)[probabilities.argmax(axis=-1)])
    return np.column_stack(found).astype(np.float32, copy=False)


class Logistic(Struct, frozen=True, forbid_unknown_fields=True):
    """Logistic regression over `features`, as stored in the manifest.

    Attributes:
        weights: (features,); they include the standardisation of the fit.
        bias: log-odds of a loss at features of 0.
    """

    weights: tuple[float, ...]
    bias: float

    def losses(self, probabilities: Probabilities) -> Scores:
        """Returns P(loss), (n,) float32 in [0, 1].

        Raises:
            ConfigError: fitted for another number of classes.
        """
        found = features(probabilities)
        if found.shape[1] != len(self.weights):
            raise ConfigError(
                f"The learned score has {len(self.weights)} weights, but {probabilities.shape[1]} classes give "
                f"{found.shape[1]} features; fit it for this model."
            )
        odds = found.astype(np.float64) @ np.asarray(self.weights) + self.bias
        lost: Scores = (1 / (1 + np.exp(np.clip(-odds, -700, 700)))).astype(np.float32)
        return lost

    def score(self, probabilities: Probabilities, _logits: Probabilities | None = None, /) -> Scores:
        """Returns 1 - P(loss), (n,) float32 in [0, 1]; higher means more certain. Logits are not used."""
        return 1 - self.losses(probabilities)
