"""The test of two groups that chance divided: how many other divisions would show as large a difference?

Fisher 1935, "The Design of Experiments". Where the model changes nothing (or makes every device worse by just the
tolerance, which is then taken off), a device has the same figure in whichever group it fell, so every division of the
devices was as likely as the one that was made, and the share of divisions that show at least this difference is a
p-value: exact for any number of devices, whatever their figures look like and however they differ.

Divisions are drawn at random, for there are too many, and counting the true one with them keeps the p-value exact
(Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero"). Drawing ends early where the difference is
plainly none (Besag and Clifford 1991, "Sequential Monte Carlo p-values").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ENOUGH = 20  # exceedances: the p-value is then known to a fifth, and far above any share of an error probability
_BLOCK = 512
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Groups:
    """One figure of the devices of both groups.

    Args:
        values: (devices,) the figure since the stage began.
        weights: (devices,) in (0, 1].
        before: (devices,) the figure in the time before, NaN where there was none.
        treated: (devices,) bool.
    """

    values: Floats
    weights: Floats
    before: Floats
    treated: NDArray[np.bool_]

    @property
    def counts(self) -> tuple[int, int]:
        """Devices with the model, and without."""
        treated = int(self.treated.sum())
        return treated, len(self.treated) - treated

    @property
    def means(self) -> tuple[float, float]:
        """Weighted means of treated and control."""
        return _mean(self.values, self.weights, self.treated), _mean(self.values, self.weights, ~self.treated)


def adjusted(groups: Groups, tolerance: float) -> Floats:
    """Values less the tolerance, where treated, and less what the time before foretells.

    A device that was bad before will be bad again: what of its figure that explains says nothing of the model, and
    without it the groups are easier to tell apart (regression on a covariate from before the experiment; Deng et al.
    2013, "CUPED"). The slope is fitted on both groups together, so that no division is favoured.

    Args:
        groups: the figure.
        tolerance: how much worse the treated may be.

    Returns:
        (devices,) residuals.
    """
    values = groups.values - tolerance * groups.treated
    known = np.isfinite(groups.before)
    if known.sum() < 3:
        return values
    weights = groups.weights
    centre = np.average(groups.before[known], weights=weights[known])
    moved = np.where(known, groups.before - centre, 0.0)
    spread = float(np.sum(weights * moved * moved))
    if spread <= 0:
        return values
    slope = float(np.sum(weights * moved * (values - np.average(values, weights=weights)))) / spread
    return values - slope * moved


def p_value(groups: Groups, tolerance: float, smallest: float, rng: np.random.Generator) -> float:
    """P-value of "the model makes no device worse by more than the tolerance".

    Args:
        groups: at least one device in each.
        tolerance: the largest difference that is accepted.
        smallest: the p-value that would decide; so many divisions are drawn that it can be reached.
        rng: draws them.

    Returns:
        In (0, 1].
    """
    values, weights = adjusted(groups, tolerance), groups.weights
    devices, treated = len(values), groups.counts[0]
    if not 0 < treated < devices:
        return 1.0
    weighted = values * weights
    total, total_weight = float(weighted.sum()), float(weights.sum())
    chosen = groups.treated
    seen = float(_difference(weighted[chosen].sum(), weights[chosen].sum(), total, total_weight))
    seen -= _ROUNDING * (1 + abs(seen))
    at_most = math.ceil(2 / smallest)
    drawn = exceeded = 0
    order = np.broadcast_to(np.arange(devices), (_BLOCK, devices))
    while drawn < at_most and exceeded < _ENOUGH:
        others = rng.permuted(order, axis=1)[:, :treated]
        found = _difference(weighted[others].sum(axis=1), weights[others].sum(axis=1), total, total_weight)
        exceeded += int(np.count_nonzero(found >= seen))
        drawn += _BLOCK
    return (1 + exceeded) / (1 + drawn)


def _difference(part: Floats, weight: Floats, total: float, total_weight: float) -> Floats:
    """Weighted mean of a part less that of the rest."""
    difference: Floats = part / weight - (total - part) / (total_weight - weight)
    return difference


def _mean(values: Floats, weights: Floats, chosen: NDArray[np.bool_]) -> float:
    return float(np.average(values[chosen], weights=weights[chosen])) if chosen.any() else math.nan
