"""Decides by data what a model file does not tell: each way of decoding runs on some images, and they are compared.

Labels are the best judge. Without labels it is the other model, if its own decoding is settled; without that, it is how
much the model has to say: confident detections, or sure and diverse classes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle import runtime_of
from firstline.workbench.recognition import Choice, Reading
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Manifest, Model, Policy, Score
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError
from firstline_core.processing.boxes import CLASSES, COUNT, SCORES, intersection_over_union, partners
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.processing.trial import bytes_rows
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks import AnyTask
from firstline_core.tasks.arrays import LABEL, UNLABELLED
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection, detections
from firstline_core.types import PROBABILITIES, Arrays, join_rows

_INPUT = InputSpec("image", "BYTES", (-1,), "image")
BUDGET_S = 15.0
_FEWEST_IMAGES = 8
_IMAGES = 48  # that a decision begins with; it takes more while they do not settle it
_CONFIDENT = 0.4  # score from which a detection counts as confident
_MOST_OBJECTS = 40  # confident detections that an image may plausibly have
_OVERLAP = 0.5

_CLEAR, _CLEAR_AGAINST_CONVENTION = 2.5, 4.0
"""Standard errors by which a decoding has to be better than the preferred one to replace it."""
_ALIKE = 0.03
"""Decodings whose figures differ by less than this share make no difference."""

Judge = Literal["labels", "the other model", "the model itself"]


class Trials:
    """Runs readings of one model file on images, each once.

    Args:
        file: of the model.
        task: whose outputs the readings give.
        images: encoded.
        options: how the model runs.
        budget_s: of all decodings of one choice, in seconds; it limits the number of images.
    """

    def __init__(
        self,
        file: Path,
        task: AnyTask,
        images: Sequence[bytes],
        options: RuntimeOptions,
        budget_s: float = BUDGET_S,
    ) -> None:
        content = file.read_bytes()
        self._file, self._task, self._options = file.absolute(), task, options
        self._artefact = Artefact(file=file.name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        self._runtime = runtime_of(file)
        self._images = list(images)
        self._outputs: dict[tuple[str, str], Arrays] = {}
        self._row_s: float | None = None
        self._budget_s = budget_s

    @property
    def task(self) -> AnyTask:
        return self._task

    @property
    def images(self) -> Sequence[bytes]:
        return self._images

    def outputs(self, reading: Reading, count: int | None = None) -> Arrays:
        """Returns the canonical outputs of a reading for the first `count` images, all without it.

        Raises:
            FirstlineError: the steps do not fit the model, or it fails on an image.
        """
        count = len(self._images) if count is None else count
        key = reading.preprocess, reading.postprocess
        known = self._outputs.get(key)
        done = 0 if known is None else len(next(iter(known.values())))
        if known is None or done < count:
            found = [] if known is None else [known]
            with closing(load_model(self._bundle(reading), self._model(reading), self._options)) as loaded:
                for image in self._images[done:count]:
                    found.append(loaded.predict({_INPUT.name: bytes_rows([image])}).outputs)
            known = self._outputs[key] = join_rows(found)
        return {name: array[:count] for name, array in known.items()}

    def affordable(self, reading: Reading, decodings: int) -> int:
        """Returns the number of images on which this many decodings run in the time that a choice may take."""
        if self._row_s is None:
            self.outputs(reading, 1)
            begin_s, count = time.perf_counter(), min(4, len(self._images))
            self.outputs(reading, count)
            self._row_s = (time.perf_counter() - begin_s) / max(count - 1, 1)
        most = int(self._budget_s / decodings / max(self._row_s, 1e-6))
        return min(len(self._images), max(_FEWEST_IMAGES, most))

    def use(self, count: int) -> None:
        """Leaves out all images after the first `count`."""
        del self._images[count:]

    def _model(self, reading: Reading) -> Model:
        steps: tuple[Any, ...] = parse_preprocess(reading.preprocess)
        return Model(
            id="model",
            artefact=self._artefact,
            runtime=self._runtime,
            precision="",
            inputs=(ModelInput(_INPUT.name, reading.input, steps),),
            postprocess=parse_postprocess(reading.postprocess),  # type: ignore[arg-type]
            output=reading.output,
        )

    def _bundle(self, reading: Reading) -> Bundle:
        kinds = self._task.score_kinds
        manifest = Manifest(
            name="trial",
            version=1,
            task=self._task,
            inputs=(_INPUT,),
            edge=(self._model(reading),),
            policy=Policy(Score("few_classes" if "few_classes" in kinds else kinds[0])),
        )
        return Bundle(self._file.parent, manifest)


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, and how it was made.

    Attributes:
        choice: of a reading.
        value: the best one; the preferred one if it is not clear.
        sure: whether convention or data settle it; otherwise a person has to choose.
        why: a sentence.
        figures: the mean figure of each value, higher is better.
    """

    choice: Choice
    value: str
    sure: bool
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)


def decide(
    trials: Trials, reading: Reading, choice: Choice, *, truth: Arrays | None = None, others: Sequence[Arrays] = ()
) -> Decision:
    """Tries the values of a choice, and compares them image by image.

    Args:
        trials: of the model.
        reading: with other choices made, or at their preferred values.
        choice: one of its choices.
        truth: labels of the trials' images, in the form of the task; None without labels.
        others: the outputs of the other model for them, in each way in which it may be decoded; the one that agrees
            best counts. Without any, the model itself is the judge.
    """
    judge: Judge = "labels" if truth is not None else "the other model" if others else "the model itself"
    most = trials.affordable(reading, len(choice.values))
    count = min(_IMAGES, most)
    while True:
        rows = _rows(trials, reading, choice, count, others if truth is None else (truth,))
        if not rows:
            return Decision(choice, choice.values[0], sure=False, why="no way of decoding fits the model")
        decision = _compared(choice, rows, judge)
        if judge == "the model itself" and choice.field in ("scaling", "decoder") and not choice.known:
            # A wrong range or activation can make a model surer than the right one.
            decision = replace(
                decision, sure=False, why=f"only the data's labels or another model could tell: {decision.why}"
            )
        if decision.sure or count == most:
            return decision
        count = min(2 * count, most)


def _rows(
    trials: Trials, reading: Reading, choice: Choice, count: int, references: Sequence[Arrays]
) -> dict[str, NDArray[np.float64]]:
    """Returns the figure of each image by value; values that do not fit the model are left out."""
    rows: dict[str, NDArray[np.float64]] = {}
    for value in choice.values:
        try:
            outputs = trials.outputs(reading.with_value(choice, value), count)
        except FirstlineError:
            continue
        if not references:
            rows[value] = information(trials.task, outputs)
            continue
        first = ({name: array[:count] for name, array in reference.items()} for reference in references)
        rows[value] = max((similarity(trials.task, outputs, reference) for reference in first), key=_mean)
    return rows


def _compared(choice: Choice, rows: Mapping[str, NDArray[np.float64]], judge: Judge) -> Decision:
    figures = {value: _mean(found) for value, found in rows.items()}
    preferred = next(value for value in choice.values if value in rows)
    best = max(figures, key=lambda value: figures[value])
    meaning, shown = choice.meaning, f"{figures[best]:.3f}"
    if best == preferred:
        others = [value for value in figures if value != best]
        if not others:
            return Decision(choice, best, sure=True, why=f"{meaning(best)}: the only way that fits", figures=figures)
        second = max(others, key=lambda value: figures[value])
        clear = _standard_errors(rows[best], rows[second]) >= _CLEAR
        if clear or choice.known or _alike(figures[best], figures[second]):
            how = "confirmed by" if clear else "no other way is better by"
            why = f"{meaning(best)}: {how} {judge} ({shown} against {figures[second]:.3f})"
            return Decision(choice, best, sure=True, why=why, figures=figures)
        why = f"{meaning(best)} or {meaning(second)}: {judge} cannot tell ({shown} and {figures[second]:.3f})"
        return Decision(choice, best, sure=False, why=why, figures=figures)
    errors = _standard_errors(rows[best], rows[preferred])
    gain = f"({shown} against {figures[preferred]:.3f} of the usual way, {meaning(preferred)})"
    if errors >= (_CLEAR_AGAINST_CONVENTION if choice.known else _CLEAR):
        return Decision(
            choice,
            best,
            sure=True,
            why=f"{meaning(best)}: settled by {judge} {gain}",
            figures=figures,
        )
    if errors < _CLEAR or _alike(figures[best], figures[preferred]):
        same = _alike(figures[best], figures[preferred])
        if choice.known or same:
            why = f"{meaning(preferred)}: no other way is clearly better by {judge}"
            return Decision(choice, preferred, sure=True, why=why, figures=figures)
    why = f"{meaning(best)} or {meaning(preferred)}: {judge} cannot tell {gain}"
    return Decision(choice, preferred, sure=False, why=why, figures=figures)


def _mean(found: NDArray[np.float64]) -> float:
    return float(np.nanmean(found)) if np.isfinite(found).any() else 0.0


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _ALIKE * max(abs(one), abs(other), 1e-9)


def _standard_errors(better: NDArray[np.float64], worse: NDArray[np.float64]) -> float:
    """Returns by how many standard errors the mean of paired figures differs; rows that say nothing do not count."""
    difference = (better - worse)[np.isfinite(better) & np.isfinite(worse)]
    if len(difference) < 2:
        return 0.0
    spread = float(difference.std(ddof=1)) / np.sqrt(len(difference))
    mean = float(difference.mean())
    return mean / spread if spread > 0 else (np.inf if mean > 0 else 0.0)


def similarity(task: Task, outputs: Arrays, reference: Arrays) -> NDArray[np.float64]:
    """Returns how well outputs agree with another model's, or with labels: (n,) in [0, 1], NaN for rows without any."""
    if isinstance(task, Detection):
        return np.array([_matched(outputs, reference, row) for row in range(len(outputs[COUNT]))])
    if isinstance(task, Classification):
        probabilities = outputs[PROBABILITIES].astype(np.float64)
        if LABEL in reference:
            labels = reference[LABEL]
            found = probabilities[np.arange(len(labels)), np.maximum(labels, 0)]
            return np.where(labels == UNLABELLED, np.nan, found)
        theirs = reference[PROBABILITIES].astype(np.float64)
        # The cosine, so that a model that is sure of everything gains nothing.
        norm = np.linalg.norm(probabilities, axis=1) * np.linalg.norm(theirs, axis=1)
        agreement: NDArray[np.float64] = (probabilities * theirs).sum(axis=1) / np.maximum(norm, 1e-9)
        return agreement
    return 1.0 - task.loss(outputs, reference).astype(np.float64)


def _matched(outputs: Arrays, reference: Arrays, row: int) -> float:
    """Returns the F1 of a row's detections, each weighted by its score."""
    ours, theirs = detections(outputs, row), detections(reference, row)
    total = float(ours.scores.sum() + theirs.scores.sum())
    if not total:
        return float("nan")
    overlap = intersection_over_union(ours.boxes, theirs.boxes)
    overlap[(ours.classes[:, None] != theirs.classes) | (overlap < _OVERLAP)] = 0
    partner = partners(overlap)
    paired = np.flatnonzero(partner >= 0)
    return float(2 * np.minimum(ours.scores[paired], theirs.scores[partner[paired]]).sum() / total)


def information(task: Task, outputs: Arrays) -> NDArray[np.float64]:
    """Returns how much outputs say without any reference, (n,): confident detections, or sure and diverse classes."""
    if isinstance(task, Detection):
        sure = np.where(outputs[CLASSES] >= 0, np.maximum(outputs[SCORES] - _CONFIDENT, 0) / (1 - _CONFIDENT), 0)
        # A model that is fed wrongly may report objects everywhere.
        return np.where((sure > 0).sum(axis=1) > _MOST_OBJECTS, 0, sure.sum(axis=1)).astype(np.float64)
    if isinstance(task, Classification):
        probabilities = outputs[PROBABILITIES].astype(np.float64)
        probabilities = np.maximum(probabilities, 1e-12) / np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-12)
        mean = probabilities.mean(axis=0)
        # The divergence from the mean answer; its mean is the mutual information of images and classes.
        divergence: NDArray[np.float64] = (probabilities * np.log(probabilities / mean)).sum(axis=1)
        return divergence
    return np.zeros(len(next(iter(outputs.values()))))
