"""Applies a learned model of P(edge wrong and cloud right | features). The workbench fits it.

It uses numpy only, so that the device needs no learning library.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.errors import ConfigError
from firstline_core.routing.confidence import Probabilities, Scores, entropy, temper

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

    def score(self, probabilities: Probabilities) -> Scores:
        """Returns 1 - P(loss), (n,) float32 in [0, 1]; higher means more certain."""
        return 1 - self.losses(probabilities)
