"""Compares both models before use: refuses an edge model that does not fit, and proposes operating scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.certify import require_different_answers
from firstline.workbench.decodings import similarity
from firstline_core.errors import ConfigError
from firstline_core.processing.boxes import BOXES, CLASSES, COUNT, SCORES
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import PROBABILITIES, Array, Arrays

_LEAST_F1 = 0.25
_SATURATED = 0.1  # share of a block of numbers that lie exactly at its smallest or largest value
_GRID = np.round(np.arange(0.05, 0.96, 0.05), 2)
_GAIN = 0.01  # in F1, that a score has to bring to replace the family's usual one


def check_agreement(task: Task, edge: Arrays, full: Arrays, raw: Mapping[str, Array]) -> str:
    """Compares the answers of both models to the same images.

    Args:
        task: of both.
        edge: canonical outputs.
        full: canonical outputs.
        raw: the edge model's own outputs, which may show why it does not fit.

    Returns:
        How well they agree, as a sentence.

    Raises:
        ConfigError: they agree no better than models of different things, or each has one answer to all images.
    """
    require_different_answers(edge, full)
    if isinstance(task, Detection):
        return _check_detectors(task, edge, full, raw)
    if isinstance(task, Classification):
        return _check_classifiers(edge, full)
    return _check_others(task, edge, full)


def _check_detectors(task: Detection, edge: Arrays, full: Arrays, raw: Mapping[str, Array]) -> str:
    f1 = similarity(task, edge, full)
    mean = float(np.nanmean(f1)) if np.isfinite(f1).any() else 0.0
    objects = task.objects(edge, full)
    found, missed, invented = (int(counts.sum()) for counts in objects)
    counted = f"it finds {found} of the {found + missed} objects that the full model finds, and {invented} others"
    if not found + missed:
        raise ConfigError(
            "The full model finds no object in the data, so nothing shows that it is read rightly; give data with "
            "objects of its classes."
        )
    if mean >= _LEAST_F1:
        return counted
    cause = _saturation(raw)
    raise ConfigError(
        f"The edge model does not fit the full model: {counted}, with a weighted F1 of {mean:.2f} where a usable pair "
        f"has {_LEAST_F1:g} or more. {cause or 'Its boxes or classes are read wrongly, or it is another model'}. "
        "No bundle was made."
    )


def _saturation(raw: Mapping[str, Array]) -> str:
    """Returns a sentence if many of the box terms lie exactly at the ends of a range, as after a wrong quantisation."""
    for name, array in raw.items():
        if array.ndim != 3 or min(array.shape[1:]) < 4:
            continue
        terms = array[0] if array.shape[1] >= array.shape[2] else array[0].T
        block = terms[:, :4].astype(np.float64)
        low, high = block.min(), block.max()
        share = float(((block == low) | (block == high)).mean())
        if high > low and share >= _SATURATED:
            return (
                f"{share:.0%} of the box terms in its output '{name}' are exactly {low:.3g} or {high:.3g}, the ends of "
                "a quantised range: one scale was used for boxes and scores together. Quantise it again with the boxes "
                "apart from the scores, or leave its last operator in floating point"
            )
    return ""


def _check_classifiers(edge: Arrays, full: Arrays) -> str:
    ours, theirs = edge[PROBABILITIES].argmax(axis=1), full[PROBABILITIES].argmax(axis=1)
    share = float((ours == theirs).mean())
    classes = edge[PROBABILITIES].shape[1]
    by_chance = float((np.bincount(ours, minlength=classes) * np.bincount(theirs, minlength=classes)).sum())
    by_chance /= len(ours) ** 2
    sentence = f"both models give the same label to {share:.0%} of the data ({by_chance:.0%} would be chance)"
    if by_chance == 1:
        raise ConfigError(
            f"Both models give one and the same label to all {len(ours)} rows that are compared, which shows nothing "
            "about the models. Give data with inputs of several labels."
        )
    if share > by_chance + 3 * np.sqrt(max(by_chance * (1 - by_chance), 1e-4) / len(ours)):
        return sentence
    shifted = next((step for step in (-1, 1) if float((ours == theirs + step).mean()) > max(2 * share, 0.2)), 0)
    cause = (
        f"Its labels are shifted by {abs(shifted)} against those of the full model, as by a background class"
        if shifted
        else "Its inputs are prepared wrongly, its labels have another order, or it is another model"
    )
    raise ConfigError(f"The edge model does not fit the full model: {sentence}. {cause}. No bundle was made.")


def _check_others(task: Task, edge: Arrays, full: Arrays) -> str:
    """Compares each answer with the full model's to the same input and to the next one."""
    agreement = similarity(task, edge, full)
    by_chance = similarity(task, edge, {name: np.roll(array, 1, axis=0) for name, array in full.items()})
    sentence = f"their answers agree to {float(agreement.mean()):.0%} ({float(by_chance.mean()):.0%} would be chance)"
    gain = agreement - by_chance
    if len(gain) < 2 or float(gain.mean()) > 2 * float(gain.std(ddof=1)) / np.sqrt(len(gain)):
        return sentence
    raise ConfigError(
        f"The edge model does not fit the full model: {sentence}. Its inputs are prepared wrongly, its classes have "
        "another order, or it is another model. No bundle was made."
    )


class OperatingScore(NamedTuple):
    """A detector's proposed operating score, and why."""

    score: float
    why: str


def propose_score(task: Detection, outputs: Arrays, reference: Arrays, usual: float, against: str) -> OperatingScore:
    """Returns the score with the best F1.

    Args:
        task: of the model.
        outputs: with every box from a low score on.
        reference: outputs of the full model, or labelled boxes.
        usual: the family's score, which stays if no other is clearly better.
        against: name of the reference, for the sentence.
    """
    found = {float(score): _f1(task, with_least_score(outputs, float(score)), reference) for score in _GRID}
    best = max(found, key=lambda score: (found[score], -abs(score - usual)))
    here = _f1(task, with_least_score(outputs, usual), reference)
    if found[best] < here + _GAIN:
        return OperatingScore(usual, f"operating score {usual:g}, the usual one: F1 {here:.2f} against {against}")
    return OperatingScore(
        best, f"operating score {best:g}: F1 {found[best]:.2f} against {against} ({here:.2f} with the usual {usual:g})"
    )


def with_least_score(outputs: Arrays, score: float) -> Arrays:
    """Returns detections of at least a score; the others become padding."""
    kept: NDArray[np.bool_] = (outputs[SCORES] >= score) & (outputs[CLASSES] >= 0)
    return {
        BOXES: np.where(kept[..., None], outputs[BOXES], 0),
        SCORES: np.where(kept, outputs[SCORES], 0),
        CLASSES: np.where(kept, outputs[CLASSES], -1),
        COUNT: kept.sum(axis=1).astype(np.int64),
    }


def _f1(task: Detection, outputs: Arrays, reference: Arrays) -> float:
    objects = task.objects(outputs, reference)
    found, missed, invented = (int(counts.sum()) for counts in objects)
    return 2 * found / max(2 * found + missed + invented, 1)
