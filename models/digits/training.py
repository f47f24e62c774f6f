"""How the two models learn. Both problems have one optimum, so another machine finds the same weights.

Their settings were chosen by five-fold cross-validation on the training part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold

CLASSES = 10
EDGE_INVERSE_REGULARISATION = 10.0
KERNEL_GAMMA = 0.2
KERNEL_RIDGE = 0.01


class Linear(NamedTuple):
    """logits = x @ weights.T + bias, x in 0..1.

    Attributes:
        weights: (classes, 64) float32.
        bias: (classes,) float32.
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]


class KernelMachine(NamedTuple):
    """logits = exp(-gamma * |x - centres|^2) @ dual, x and centres in 0..1.

    Attributes:
        centres: (m, 64) uint8, pixels as in the files.
        dual: (m, classes) float64.
        gamma: width of the kernel, per squared unit of grey.
    """

    centres: NDArray[np.uint8]
    dual: NDArray[np.float64]
    gamma: float

    def logits(self, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
        """(n, classes) of (n, 8, 8) uint8 scans."""
        return rbf_kernel(_unit(pixels), _unit(self.centres), self.gamma) @ self.dual

    def scaled(self, factor: float) -> KernelMachine:
        return self._replace(dual=self.dual * factor)


def fit_edge(pixels: NDArray[np.uint8], digits: NDArray[np.int64]) -> Linear:
    """Multinomial logistic regression, by Newton's method to the last digit (first-order solvers stop early)."""
    model = LogisticRegression(C=EDGE_INVERSE_REGULARISATION, solver="newton-cholesky", tol=1e-10, max_iter=100)
    model.fit(_unit(pixels), digits)
    return Linear(model.coef_.astype(np.float32), model.intercept_.astype(np.float32))


def fit_full(pixels: NDArray[np.uint8], digits: NDArray[np.int64]) -> KernelMachine:
    """Kernel ridge regression on one-hot targets over the scans and their half-pixel shifts.

    A closed form: (K + ridge I) dual = targets (Rasmussen and Williams, Gaussian Processes for Machine
    Learning, 2006, section 6.5). Writers do not centre digits alike; the shifts teach that for free.
    """
    shifted = half_pixel_shifts(pixels)
    targets = np.tile(np.eye(CLASSES)[digits], (len(shifted) // len(pixels), 1)) - 1 / CLASSES
    ridge = KernelRidge(alpha=KERNEL_RIDGE, kernel="rbf", gamma=KERNEL_GAMMA)
    dual = ridge.fit(_unit(shifted), targets).dual_coef_
    return KernelMachine(shifted.reshape(-1, 64), dual, KERNEL_GAMMA)


def full_out_of_fold(pixels: NDArray[np.uint8], digits: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n, classes) logits of each scan by a full model that was fitted without it, in three folds.

    What a temperature is fitted to, so that it takes no scans but those that train.
    """
    logits = np.empty((len(digits), CLASSES))
    for others, fold in StratifiedKFold(3, shuffle=True, random_state=0).split(pixels, digits):
        logits[fold] = fit_full(pixels[others], digits[others]).logits(pixels[fold])
    return logits


def half_pixel_shifts(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The scans, then all of them moved half a pixel up, down, left and right; paper comes in at the border.

    Args:
        pixels: (n, height, width) uint8.

    Returns:
        (5 n, height, width) uint8.
    """
    wide = np.pad(pixels.astype(np.uint16), ((0, 0), (1, 1), (1, 1)))
    here = wide[:, 1:-1, 1:-1]
    neighbours = (wide[:, 2:, 1:-1], wide[:, :-2, 1:-1], wide[:, 1:-1, 2:], wide[:, 1:-1, :-2])
    return np.concatenate([pixels, *((here + other + 1) // 2 for other in neighbours)]).astype(np.uint8)


def _unit(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    return pixels.reshape(len(pixels), -1) / 255
