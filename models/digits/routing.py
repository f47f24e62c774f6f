"""Temperature and threshold from the calibration part, and what they give. Pure functions of logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

# How many of the calibration scans the edge keeps, the surest first. The aim is 70 % at least; the rest is margin.
EDGE_SHARE = 0.8


class Tiered(NamedTuple):
    """What routing by the threshold gives: the share kept at the edge, and the accuracy of all answers."""

    edge_share: float
    accuracy: float


def fit_temperature(logits: NDArray[np.floating], digits: NDArray[np.int64]) -> float:
    """The T > 0 for which softmax(logits / T) has the least negative log-likelihood, to 4 significant digits.

    Guo et al., On Calibration of Modern Neural Networks, 2017. More digits than that would only be noise, and
    would differ from machine to machine.
    """
    wide = logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        said = log_softmax(wide / np.exp(log_temperature), axis=1)
        return float(-said[np.arange(len(digits)), digits].mean())

    found = minimize_scalar(loss, bounds=(np.log(1e-3), np.log(1e3)), method="bounded", options={"xatol": 1e-8})
    return float(f"{np.exp(found.x):.4g}")


def confidence(logits: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """(n,) the largest probability of softmax(logits / temperature)."""
    return np.asarray(softmax(logits.astype(np.float64) / temperature, axis=1).max(axis=1))


def choose_threshold(confidences: NDArray[np.float64]) -> float:
    """The confidence that `EDGE_SHARE` of the calibration scans reach, to 4 decimals, rounded up."""
    return float(np.ceil(np.quantile(confidences, 1 - EDGE_SHARE) * 1e4) / 1e4)


def tiered(
    edge_logits: NDArray[np.floating],
    full_logits: NDArray[np.floating],
    digits: NDArray[np.int64],
    temperature: float,
    threshold: float,
) -> Tiered:
    """Keeps the edge answers whose confidence reaches the threshold, and takes the full model's for the rest."""
    kept = confidence(edge_logits, temperature) >= threshold
    answers = np.where(kept, edge_logits.argmax(axis=1), full_logits.argmax(axis=1))
    return Tiered(float(kept.mean()), accuracy_of(answers, digits))


def accuracy_of(answers: NDArray[np.int64], digits: NDArray[np.int64]) -> float:
    return float((answers == digits).mean())
