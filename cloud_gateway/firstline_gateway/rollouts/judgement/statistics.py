"""The statistics of a judgement: a permutation test, the error probability per evaluation, the detectable difference.

The test asks how many other divisions of the devices would show as large a difference (Fisher 1935, "The Design of
Experiments"). If the model changes nothing, or makes every device worse by just the tolerance, which is subtracted, a
device has the same figure in either group. Every division of the devices was then as likely as the one that was made,
and the share of divisions that show at least this difference is a p-value. It is exact for any number of devices,
whatever their figures look like and however they differ.

There are too many divisions, so they are drawn at random; counting the true one with them keeps the p-value exact
(Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero"). Drawing ends early where there is plainly no
difference (Besag and Clifford 1991, "Sequential Monte Carlo p-values"). All figures of an evaluation are tested with
the same divisions: each p-value is exact on its own, and nothing here requires them to be independent. Devices that do
not report a figure are divided with the others and have no weight.

A figure by class, such as the share of missed objects, is tested by its worst class: the largest difference of all
classes, each in units of its own spread (Westfall and Young 1993, "Resampling-based Multiple Testing"). The largest
difference of each other division is taken in the same way, so the p-value is exact for any number of classes, however
they depend on each other. Where devices have several boards, the devices of each board alone are tested in the same
way.

The error probability of a rollout is divided among its stages, figures and evaluations (Bonferroni), so a rollout of a
model that changes nothing is aborted with at most that probability, however long it lasts. Stages and figures have
equal shares. One half of a stage's share goes to the evaluations within its time, in equal parts. The other half goes
to those that follow if the stage is held for longer: the k-th has the part 1 / (k (k + 1)), and they add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

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
        weights: (devices,) in (0, 1]; 0 if a device does not report the figure.
        before: (devices,) the figure in the time before, NaN where there was none.
        treated: (devices,) bool.
        name: of the class; "" for a figure without classes.
        board: the hardware of the only devices with a weight; "" for all devices.
    """

    values: Floats
    weights: Floats
    before: Floats
    treated: Mask
    name: str = ""
    board: str = ""

    @property
    def arms(self) -> tuple[Mask, Mask]:
        """Returns the devices that report the figure: with the model, and without."""
        reporting = self.weights > 0
        return reporting & self.treated, reporting & ~self.treated

    @property
    def counts(self) -> tuple[int, int]:
        """Returns the numbers of devices of `arms`."""
        treated, control = self.arms
        return int(treated.sum()), int(control.sum())

    @property
    def means(self) -> tuple[float, float]:
        """Returns the weighted means of treated and control."""
        treated, control = (_mean(self.values[arm], self.weights[arm]) for arm in self.arms)
        return treated, control


def adjusted(groups: Groups, tolerance: float) -> Floats:
    """Returns the values without the tolerance, where treated, and without the part that the time before explains.

    A device that was bad before will be bad again. That part of its figure contains no information about the model, and
    without it smaller differences are detected (regression on a covariate from before the experiment; Deng et al. 2013,
    "CUPED"). The slope is fitted on both groups together, so that no division is favoured.

    Args:
        groups: the figure; at least one device reports it.
        tolerance: how much worse the treated may be.

    Returns:
        (devices,) residuals.
    """
    values = groups.values - tolerance * groups.treated
    weights = groups.weights
    has_before = np.isfinite(groups.before) & (weights > 0)
    if has_before.sum() < 3:
        return values
    centre = np.average(groups.before[has_before], weights=weights[has_before])
    centred = np.where(has_before, groups.before - centre, 0.0)
    spread = float(np.sum(weights * centred * centred))
    if spread <= 0:
        return values
    slope = float(np.sum(weights * centred * (values - np.average(values, weights=weights)))) / spread
    return values - slope * centred


class ClassGroups(NamedTuple):
    """A figure to test: the groups of each class, of the same devices, and the largest accepted difference."""

    classes: Sequence[Groups]
    tolerance: float

    @property
    def is_open(self) -> bool:
        """Returns whether both groups report a class, so that there is a difference."""
        return any(all(groups.counts) for groups in self.classes)


def p_values(tested: Sequence[ClassGroups], smallest: float, rng: np.random.Generator) -> list[float]:
    """Returns the p-value of "the model makes no device worse by more than the tolerance" of several figures.

    Args:
        tested: the figures, all of the same devices.
        smallest: the p-value that would decide; enough divisions are drawn to reach it.
        rng: draws them.

    Returns:
        For each figure, in (0, 1]; 1 unless both groups report it.
    """
    found, drawn, at_most = [1.0] * len(tested), 0, math.ceil(2 / smallest)
    tables = {index: _table(figure) for index, figure in enumerate(tested) if figure.is_open}
    exceeded, observed = dict.fromkeys(tables, 0), dict[int, float]()
    for index, table in tables.items():
        largest = float(_largest(tested[index].classes[0].treated.astype(float)[None], table)[0])
        observed[index] = largest - _ROUNDING * (1 + abs(largest))
    while tables:
        treated = tested[0].classes[0].treated
        divisions = _divisions(rng, len(treated), int(treated.sum()))
        drawn += len(divisions)
        for index, table in list(tables.items()):
            # A division without a reporting device in one group shows nothing, and counts as an exceedance.
            exceeded[index] += int(np.count_nonzero(~(_largest(divisions, table) < observed[index])))
            if exceeded[index] >= _ENOUGH or drawn >= at_most:
                found[index] = (1 + exceeded[index]) / (1 + drawn)
                del tables[index]
    return found


def _table(tested: ClassGroups) -> Floats:
    """Returns the weighted residuals of each class, then the weights: (devices, 2 * classes).

    The residuals of several classes are in units of their own spread.
    """
    columns = []
    for groups in tested.classes:
        residuals, weights = adjusted(groups, tested.tolerance), groups.weights
        columns.append(residuals * weights / (_scale(residuals, weights) if len(tested.classes) > 1 else 1.0))
    return np.column_stack([*columns, *(groups.weights for groups in tested.classes)])


def difference(groups: Groups, tolerance: float) -> float:
    """Returns how far the treated are above the control group beyond the tolerance, in units of the spread."""
    residuals, weights = adjusted(groups, tolerance), groups.weights
    treated, control = (_mean(residuals[arm], weights[arm]) for arm in groups.arms)
    return (treated - control) / _scale(residuals, weights)


def _scale(residuals: Floats, weights: Floats) -> float:
    """Returns the unit of a class's differences: in proportion to their spread over all divisions; 1 without any."""
    total = float(weights.sum())
    centred = residuals - float(np.sum(weights * residuals)) / total if total else residuals
    found = math.sqrt(float(np.sum((weights * centred) ** 2))) / total if total else 0.0
    return found if found > _ROUNDING else 1.0


def _largest(divisions: Floats, table: Floats) -> Floats:
    """Returns (divisions,): the largest difference of a figure's classes; NaN if a figure without classes shows none.

    Args:
        divisions: (divisions, devices) 1 for the devices that a division would treat.
        table: of the figure, see `_table`.
    """
    differences = _differences(_sums(divisions, table), table.sum(axis=0))
    if differences.shape[1] == 1:
        return differences[:, 0]
    # A class that only one group reports shows nothing; without any other, the figure shows nothing either.
    largest: Floats = np.nan_to_num(differences, nan=-math.inf).max(axis=1)
    return largest


def _divisions(rng: np.random.Generator, devices: int, treated: int) -> Floats:
    """Returns (divisions, devices): 1 for the devices that a division would treat; all divisions are equally likely."""
    drawn = rng.random((max(1, min(_BLOCK, _BLOCK_NUMBERS // devices)), devices))
    last = np.partition(drawn, treated - 1, axis=1)[:, treated - 1, None]
    return (drawn <= last).astype(float)


def _sums(divisions: Floats, table: Floats) -> Floats:
    """Returns (divisions, columns): each column's sum over the devices that a division would treat.

    The slices are too small for the linear algebra library to use threads. Threads gain nothing here, and where
    processes share few cores they wait for each other many times as long as the product takes.
    """
    rows = max(1, _SLICE // table.size)
    return np.concatenate([divisions[start : start + rows] @ table for start in range(0, len(divisions), rows)])


def _differences(sums: Floats, totals: Floats) -> Floats:
    """Returns the weighted means of a part less those of the rest.

    Args:
        sums: (divisions, 2 * classes) weighted values of the part, then weights.
        totals: (2 * classes,) of both groups together.

    Returns:
        (divisions, classes); NaN without a reporting device in one of the groups.
    """
    (part, weight), (rest, rest_weight) = np.split(sums, 2, axis=1), np.split(totals - sums, 2, axis=1)
    least = _ROUNDING * np.split(totals, 2)[1]  # the rounding error of an empty group's weight
    difference: Floats = part / _or_nan(weight, least) - rest / _or_nan(rest_weight, least)
    return difference


def _or_nan(weights: Floats, least: Floats) -> Floats:
    return np.where(weights > least, weights, math.nan)


def _mean(values: Floats, weights: Floats) -> float:
    return float(np.average(values, weights=weights)) if values.size else math.nan


_NORMAL = NormalDist()
POWER = 0.9
"""Probability with which a difference of the stated size is detected."""


def standard_error(groups: Groups) -> float:
    """Returns the error of the difference of means, from the spread within the groups; infinite below two each."""
    values, weights, squares = adjusted(groups, 0.0), groups.weights, 0.0
    for chosen in groups.arms:
        if chosen.sum() < 2:
            return math.inf
        weight = weights[chosen] / weights[chosen].sum()
        away = values[chosen] - float(np.sum(weight * values[chosen]))
        count = int(chosen.sum())
        squares += float(np.sum((weight * away) ** 2)) * count / (count - 1)
    return math.sqrt(squares)


def spread_error(spread: float, treated: int, control: int) -> float:
    """Predicts `standard_error` from the standard deviation between devices and the sizes of the groups."""
    return spread * math.sqrt(1 / treated + 1 / control) if treated and control else math.inf


def smallest_detectable(error: float, level: float, divisions: float = math.inf) -> float:
    """Returns how far beyond the tolerance the true difference must be to be detected with probability `POWER`.

    It uses the normal approximation, for predictions only: no decision to abort is based on it.

    Args:
        error: standard error of the difference.
        level: p-value that decides.
        divisions: number of divisions of the devices; if 1 / divisions is above the level, nothing can be detected.
    """
    if 1 / divisions > level or not math.isfinite(error):
        return math.inf
    return (_NORMAL.inv_cdf(1 - level) + _NORMAL.inv_cdf(POWER)) * error


def divisions(treated: int, control: int) -> float:
    """Returns in how many ways chance could have divided the devices."""
    if not treated or not control:
        return 1.0
    log = math.lgamma(treated + control + 1) - math.lgamma(treated + 1) - math.lgamma(control + 1)
    return math.exp(min(log, 700.0))


LOOKS_PER_STAGE = 8
"""Number of evaluations of a stage within its time; later ones follow at growing intervals."""


def level(alpha: float, *, stages: int, figures: int, look: int) -> float:
    """Returns the p-value at or below which one figure aborts at one evaluation.

    Args:
        alpha: the rollout's.
        stages: of the rollout.
        figures: that are tested.
        look: 1 for a stage's first.
    """
    share = alpha / (stages * figures)
    if look <= LOOKS_PER_STAGE:
        return share / (2 * LOOKS_PER_STAGE)
    later = look - LOOKS_PER_STAGE
    return share / (2 * later * (later + 1))
