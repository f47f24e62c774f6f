"""Chooses what data decide after both models are read: operating scores, thresholds and the tolerance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstline.workbench.decodings import Trials, first_score
from firstline.workbench.pairing.agreement import propose_score
from firstline.workbench.pairing.specification import EDGE, FULL
from firstline.workbench.recognition.reading import Reading
from firstline_core.errors import ConfigError
from firstline_core.tasks import AnyTask
from firstline_core.tasks.anomaly import ANOMALOUS, SCORE, Anomaly
from firstline_core.tasks.arrays import LABEL, UNLABELLED
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.regression import SCALE, VALUES, Regression
from firstline_core.types import Arrays

_LOW_SCORE = 0.05
_TOLERANCE = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(%|sd)?", re.ASCII)


class Operated(NamedTuple):
    """A pair with its operating points.

    Attributes:
        task: with its tolerance.
        models: by role, with their operating scores.
        decided: sentences for people.
    """

    task: AnyTask
    models: dict[str, Reading]
    decided: tuple[str, ...]


def operate(
    task: AnyTask, trials: Mapping[str, Trials], models: Mapping[str, Reading], truth: Arrays | None, tolerance: str
) -> Operated:
    """Proposes the operating scores of detectors and anomaly models, or the tolerance of a regression.

    Args:
        task: of the pair; the trials get the one with its tolerance.
        trials: by role.
        models: by role, all choices made.
        truth: labels of the rows of the trials; None without any.
        tolerance: of a regression, from the user; "" without any.

    Raises:
        ConfigError: labels are needed, or the tolerance is not valid or of another task.
    """
    models = {role: models[role] for role in (EDGE, FULL) if role in models}
    if tolerance and not isinstance(task, Regression):
        raise ConfigError(
            f"--tolerance is of models that answer with numbers; these are of {task.kind}, so leave it out."
        )
    if isinstance(task, Detection):
        return _detectors(task, trials, models, truth)
    if isinstance(task, Anomaly):
        return _anomalies(task, trials, models, truth)
    if isinstance(task, Regression):
        return _values(task, trials, models, truth, tolerance)
    return Operated(task, dict(models), ())


def _detectors(
    task: Detection, trials: Mapping[str, Trials], models: Mapping[str, Reading], truth: Arrays | None
) -> Operated:
    """Gives each detector the score of the best F1: the full model's against labels, then the edge's against it.

    Without labels the full model keeps the usual score of its family.
    """
    chosen, decided = dict(models), list[str]()
    reference, against = truth, "the labels"
    for role in (role for role in (FULL, EDGE) if role in models):
        reading = models[role]
        if reference is not None:
            every = trials[role].outputs(replace(reading, score=_LOW_SCORE))
            proposed = propose_score(task, every, reference, reading.score, against)
            chosen[role] = reading = reading.noted(proposed.why, score=proposed.score)
            decided.append(f"{role}: {proposed.why}.")
        if role == FULL:
            reference, against = trials[FULL].outputs(reading), "the full model"
    return Operated(task, chosen, tuple(decided))


def _anomalies(
    task: Anomaly, trials: Mapping[str, Trials], models: Mapping[str, Reading], truth: Arrays | None
) -> Operated:
    """Gives each model the operating score of the best F1: the full model against labels, then the edge against it."""
    if truth is None:
        raise ConfigError(
            "An anomaly model needs an operating score, which the data decide by labels: a column "
            "`label` with 0 for normal rows and 1 for anomalies. Name another column with --label-column."
        )
    labelled = truth[LABEL] != UNLABELLED
    reference, against = truth[LABEL] == 1, "the labels"
    chosen, decided = dict(models), list[str]()
    for role in (role for role in (FULL, EDGE) if role in models):
        scores = trials[role].outputs(models[role])[SCORE].astype(np.float64)
        value, side, f1 = _best_threshold(scores[labelled], reference[labelled])
        if not f1:
            raise ConfigError(f"The data has no anomaly by {against}, so the {role} model gets no operating score.")
        spread = float(np.quantile(scores, 0.75) - np.quantile(scores, 0.25)) or abs(value) or 1.0
        why = f"operating score {value:.6g}, anomalies are {side} it: F1 {f1:.2f} against {against}"
        chosen[role] = reading = models[role].noted(why, threshold=f"{value!r}:{side}:scale={spread:.6g}")
        decided.append(f"{role}: {why}.")
        if role == FULL:
            reference, against = trials[FULL].outputs(reading)[ANOMALOUS], "the full model"
    return Operated(task, chosen, tuple(decided))


def _best_threshold(scores: NDArray[np.float64], anomalous: NDArray[np.bool_]) -> tuple[float, str, float]:
    """Returns the threshold between two scores, the side of anomalies, and the F1 of the best of all of them."""
    found = (0.0, "above", 0.0)
    for side, sign in (("above", 1), ("below", -1)):
        order = np.argsort(-sign * scores, kind="stable")
        right = np.cumsum(anomalous[order])
        f1 = 2 * right / (np.arange(1, len(scores) + 1) + max(int(anomalous.sum()), 1))
        ordered = scores[order]
        f1[:-1][ordered[:-1] == ordered[1:]] = 0  # equal scores lie on one side
        at = int(f1.argmax())
        if f1[at] > found[2]:
            after = ordered[at + 1] if at + 1 < len(ordered) else ordered[at]
            found = (float((ordered[at] + after) / 2), side, float(f1[at]))
    return found


def _values(
    task: Regression, trials: Mapping[str, Trials], models: Mapping[str, Reading], truth: Arrays | None, tolerance: str
) -> Operated:
    """Sets the tolerance: the user's, or half of the errors of the full model are within it."""
    role = FULL if FULL in models else EDGE
    scaled = models[role].standardized == "standardize"
    if tolerance:
        fields, why = read_tolerance(tolerance, scaled=scaled), f"tolerance {tolerance}, as named"
        if "relative" in fields and len(models) > 1 and first_score(task, models[EDGE]) == "small_values":
            raise ConfigError(
                f"--tolerance {tolerance} needs an edge model that gives the error it expects of its values: the only "
                "score of this one, the size of its values by the tolerance, would be the same for every row. Name a "
                "tolerance in units of the values, such as 2.5, or export the model with its spread."
            )
    elif truth is None:
        raise ConfigError(
            "Models that answer with numbers need a tolerance: the difference up to which both answers agree. Name it "
            "with --tolerance (2.5, 5% or 0.25sd), or give data with labels, which decide it by the full model's error."
        )
    else:
        unit = task if not scaled else msgspec.structs.replace(task, absolute=0, scaled=1)
        trials[role].task = unit
        outputs = trials[role].outputs(models[role])
        errors = np.abs(outputs[VALUES].astype(np.float64) - truth[VALUES])
        errors = errors / outputs[SCALE][:, None] if scaled else errors
        half = float(f"{np.nanmedian(errors.max(axis=1)):.2g}") or 1e-6
        fields = {"scaled" if scaled else "absolute": half}
        of = "deviations of the row" if scaled else "in units of the values"
        why = f"tolerance {half:g} {of}: half of the {role} model's errors are smaller"
    chosen = msgspec.structs.replace(task, **{"absolute": 0.0, **fields})
    for each in trials.values():
        each.task = chosen
    return Operated(chosen, dict(models), (f"{why}.",))


def read_tolerance(text: str, *, scaled: bool) -> dict[str, float]:
    """Returns the fields of a tolerance: 2.5 is absolute, 5% relative, and 0.25sd in deviations of each row.

    Args:
        text: from the user.
        scaled: whether the models take standardised rows, whose deviations are known.

    Raises:
        ConfigError: it has another form.
    """
    found = _TOLERANCE.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) < 1e30:
        raise ConfigError(f"--tolerance {text[:80]!a} is not in the form 2.5, 5% or 0.25sd, with a number above 0.")
    value = float(found[1])
    if found[2] == "sd" and not scaled:
        raise ConfigError("--tolerance in sd needs models that take standardised rows; name 2.5 or 5%.")
    return {"%": {"relative": value / 100}, "sd": {"scaled": value}}.get(found[2] or "", {"absolute": value})
