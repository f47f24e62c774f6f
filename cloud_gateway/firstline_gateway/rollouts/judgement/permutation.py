"""The test of two groups that chance divided: how many other divisions would show as large a difference?

Fisher 1935, "The Design of Experiments". Where the model changes nothing (or makes every device worse by just the
tolerance, which is then taken off), a device has the same figure in whichever group it fell, so every division of the
devices was as likely as the one that was made, and the share of divisions that show at least this difference is a
p-value: exact for any number of devices, whatever their figures look like and however they differ.

Divisions are drawn at random, for there are too many, and counting the true one with them keeps the p-value exact
(Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero"). Drawing ends early where the difference is
plainly none (Besag and Clifford 1991, "Sequential Monte Carlo p-values"). All figures of a look are tested with the
same divisions: each p-value is as exact as by itself, and nothing here asks that they be independent.

What a device does not tell stays untold in whichever group it falls, so that devices without a figure are divided with
the others and weigh nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_ENOUGH = 20  # exceedances: the p-value is then known to a fifth, and far above any share of an error probability
_BLOCK = 512  # divisions at a time
_BLOCK_NUMBERS = 1 << 20  # drawn for them at most, of a large fleet
_SLICE = 1 << 17  # multiplications
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Groups:
    """One figure of the devices of both groups.

    Args:
        values: (devices,) the figure since the stage began.
        weights: (devices,) in (0, 1]; 0 where a device does not tell.
        before: (devices,) the figure in the time before, NaN where there was none.
        treated: (devices,) bool.
    """

    values: Floats
    weights: Floats
    before: Floats
    treated: Mask

    @property
    def arms(self) -> tuple[Mask, Mask]:
        """Those that tell: with the model, and without."""
        told = self.weights > 0
        return told & self.treated, told & ~self.treated

    @property
    def counts(self) -> tuple[int, int]:
        """How many those are."""
        treated, control = self.arms
        return int(treated.sum()), int(control.sum())

    @property
    def means(self) -> tuple[float, float]:
        """Weighted means of treated and control."""
        treated, control = (_mean(self.values[arm], self.weights[arm]) for arm in self.arms)
        return treated, control


def adjusted(groups: Groups, tolerance: float) -> Floats:
    """Values less the tolerance, where treated, and less what the time before foretells.

    A device that was bad before will be bad again: what of its figure that explains says nothing of the model, and
    without it the groups are easier to tell apart (regression on a covariate from before the experiment; Deng et al.
    2013, "CUPED"). The slope is fitted on both groups together, so that no division is favoured.

    Args:
        groups: the figure; somebody tells it.
        tolerance: how much worse the treated may be.

    Returns:
        (devices,) residuals.
    """
    values = groups.values - tolerance * groups.treated
    weights = groups.weights
    known = np.isfinite(groups.before) & (weights > 0)
    if known.sum() < 3:
        return values
    centre = np.average(groups.before[known], weights=weights[known])
    moved = np.where(known, groups.before - centre, 0.0)
    spread = float(np.sum(weights * moved * moved))
    if spread <= 0:
        return values
    slope = float(np.sum(weights * moved * (values - np.average(values, weights=weights)))) / spread
    return values - slope * moved


def p_values(tested: Sequence[tuple[Groups, float]], smallest: float, rng: np.random.Generator) -> list[float]:
    """P-values of "the model makes no device worse by more than the tolerance", of several figures.

    Args:
        tested: each figure with the largest difference that is accepted; all of the same devices.
        smallest: the p-value that would decide; so many divisions are drawn that it can be reached.
        rng: draws them.

    Returns:
        Of each figure, in (0, 1]; 1 where not both groups tell it.
    """
    found = [1.0] * len(tested)
    open_ = np.array([index for index, (groups, _) in enumerate(tested) if all(groups.counts)], int)
    if not open_.size:
        return found
    treated = tested[0][0].treated
    columns = [adjusted(*tested[index]) * tested[index][0].weights for index in open_]
    table = np.column_stack([*columns, *(tested[index][0].weights for index in open_)])
    totals = table.sum(axis=0)
    seen = _differences(treated.astype(float)[None] @ table, totals)[0]
    seen -= _ROUNDING * (1 + np.abs(seen))
    exceeded, drawn, at_most = np.zeros(len(open_), int), 0, math.ceil(2 / smallest)
    while open_.size:
        divisions = _divisions(rng, len(treated), int(treated.sum()))
        drawn += len(divisions)
        # A division in which nobody of a group tells shows nothing, and counts as if it showed as much.
        exceeded += np.count_nonzero(~(_differences(_sums(divisions, table), totals) < seen), axis=0)
        ended = (exceeded >= _ENOUGH) | (drawn >= at_most)
        for index, times in zip(open_[ended], exceeded[ended], strict=True):
            found[index] = float((1 + times) / (1 + drawn))
        left = ~ended
        open_, exceeded, seen = open_[left], exceeded[left], seen[left]
        table, totals = table[:, np.tile(left, 2)], totals[np.tile(left, 2)]
    return found


def p_value(groups: Groups, tolerance: float, smallest: float, rng: np.random.Generator) -> float:
    """The p-value of one figure: see `p_values`."""
    return p_values([(groups, tolerance)], smallest, rng)[0]


def _divisions(rng: np.random.Generator, devices: int, treated: int) -> Floats:
    """(some, devices): 1 for those that another division would treat, each division as likely as any other."""
    drawn = rng.random((max(1, min(_BLOCK, _BLOCK_NUMBERS // devices)), devices))
    last = np.partition(drawn, treated - 1, axis=1)[:, treated - 1, None]
    return (drawn <= last).astype(float)


def _sums(divisions: Floats, table: Floats) -> Floats:
    """(divisions, columns): each column's sum over those that a division would treat.

    In slices that no linear algebra spreads over threads: they gain nothing here, and where processes share few cores
    they wait for each other many times as long as the product takes.
    """
    rows = max(1, _SLICE // table.size)
    return np.concatenate([divisions[start : start + rows] @ table for start in range(0, len(divisions), rows)])


def _differences(sums: Floats, totals: Floats) -> Floats:
    """Weighted means of a part less those of the rest.

    Args:
        sums: (divisions, 2 * figures) weighted values of the part, then weights.
        totals: (2 * figures,) of both groups together.

    Returns:
        (divisions, figures); NaN where nobody of a group tells.
    """
    (part, weight), (rest, rest_weight) = np.split(sums, 2, axis=1), np.split(totals - sums, 2, axis=1)
    nobody = _ROUNDING * np.split(totals, 2)[1]  # what is left of the weights of all less those of all
    difference: Floats = part / _or_nan(weight, nobody) - rest / _or_nan(rest_weight, nobody)
    return difference


def _or_nan(weights: Floats, least: Floats) -> Floats:
    return np.where(weights > least, weights, math.nan)


def _mean(values: Floats, weights: Floats) -> float:
    return float(np.average(values, weights=weights)) if values.size else math.nan
