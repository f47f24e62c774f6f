"""A declared score as a function; for score graphs see `loading.load_scorer`."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from firstline_core.bundle.manifest import Score
from firstline_core.errors import InvalidTensorError
from firstline_core.routing import confidence
from firstline_core.routing.confidence import Probabilities, Scores
from firstline_core.routing.learned import Logistic


class Scorer(Protocol):
    """Scores rows: higher means that the edge answer is more likely to be accepted.

    Args:
        probabilities: (n, classes) float32.
        logits: (n, classes), the input of the softmax step; only "energy" needs them.

    Returns:
        (n,) float32.

    Raises:
        InvalidTensorError: not a matrix, fewer than two classes, or missing logits.
    """

    def __call__(self, probabilities: Probabilities, logits: Probabilities | None = None, /) -> Scores: ...


def scorer(declared: Score) -> Scorer:
    """Returns the function of a score without a graph."""
    if declared.kind == "graph":
        raise ValueError("a score graph is loaded from its bundle")
    if declared.learned is not None:
        return partial(_learned, declared.learned)
    if declared.kind == "energy":
        return partial(_energy, declared.temperature)
    if declared.kind == "learned":
        raise ValueError("a learned score has its weights")
    return partial(_plain, declared.kind, declared.temperature)


def _plain(
    kind: confidence.Kind, temperature: float, probabilities: Probabilities, logits: Probabilities | None = None, /
) -> Scores:
    return confidence.score(kind, probabilities, temperature)


def _learned(learned: Logistic, probabilities: Probabilities, logits: Probabilities | None = None, /) -> Scores:
    return learned.score(probabilities)


def _energy(temperature: float, probabilities: Probabilities, logits: Probabilities | None = None, /) -> Scores:
    if logits is None:
        raise InvalidTensorError("The score 'energy' needs logits; this model shows none.")
    return confidence.energy(logits, temperature)
