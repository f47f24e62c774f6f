"""What was learned of a model's answers: P(edge wrong and cloud right | features), applied. Fitting is the workbench's.

Plain numpy, so that the device needs no learning library.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.errors import ConfigError
from firstline_core.routing.confidence import Probabilities, Scores, entropy, temper

MEASURES = 4
"""The first columns of `features` are measures, the others classes."""

_CLASSES_AT_MOST = 64  # beyond, no selection part has enough rows of each class

_SMALLEST = np.float32(1 / 512)  # half a step of a quantised softmax: its zeros are no smaller than that


def feature_count(classes: int) -> int:
    """Columns of `features` for so many classes."""
    return MEASURES + (classes if classes <= _CLASSES_AT_MOST else 0)


def features(probabilities: Probabilities) -> NDArray[np.float32]:
    """What the score looks at: how sure the edge is, and of which class.

    The class matters where a quantised softmax saturates: a quarter of the answers may share one margin, yet the edge
    is wrong ten times as often about frogs as about lorries.

    Args:
        probabilities: (n, classes), classes >= 2.

    Returns:
        (n, 4) margin, certainty (one minus the entropy) and the logarithms of the two likeliest classes'
        probabilities; then, for up to 64 classes, the predicted class, one-hot.
    """
    rows = temper(probabilities, 1.0)
    top = np.sort(np.partition(rows, -2, axis=-1)[:, -2:], axis=-1)
    found = [top[:, 1] - top[:, 0], entropy(rows), np.log(np.maximum(top, _SMALLEST))]
    if rows.shape[1] <= _CLASSES_AT_MOST:
        found.append(np.eye(rows.shape[1], dtype=np.float32)[probabilities.argmax(axis=-1)])
    return np.column_stack(found).astype(np.float32, copy=False)


class Logistic(Struct, frozen=True, forbid_unknown_fields=True):
    """Logistic regression over `features`; the manifest holds it as it is.

    Attributes:
        weights: (features,); what the fit subtracted and divided by is folded in.
        bias: log-odds of a loss at features of 0.
    """

    weights: tuple[float, ...]
    bias: float

    def losses(self, probabilities: Probabilities) -> Scores:
        """P(loss), (n,) float32 in [0, 1].

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
        """1 - P(loss), (n,) float32 in [0, 1]; higher means keep."""
        return 1 - self.losses(probabilities)
