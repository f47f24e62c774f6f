"""Decides by data what a model file does not tell: each way of decoding runs on some rows, and they are compared.

Labels are the best judge. Without labels it is the other model, if its own decoding is settled; without that, it is how
much the model has to say: confident detections, or sure and diverse classes.
"""

from __future__ import annotations

import hashlib
import os.path
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle import runtime_of
from firstline.workbench.recognition.reading import Choice, Reading
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess, with_artefacts
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_around
from firstline_core.bundle.manifest import Manifest, Model, Policy, Score
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.processing.boxes import CLASSES, COUNT, SCORES, intersection_over_union, partners
from firstline_core.processing.steps import ModelInput
from firstline_core.runtime.base import Runtime
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks import AnyTask
from firstline_core.tasks.anomaly import SCORE, Anomaly
from firstline_core.tasks.arrays import LABEL, UNLABELLED
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection, detections
from firstline_core.tasks.regression import VALUES, Regression
from firstline_core.types import PROBABILITIES, Array, Arrays, join_rows

BUDGET_S = 15.0
_FEWEST_ROWS = 8
_ROWS = 48  # that a decision begins with; it takes more while they do not settle it
_CONFIDENT = 0.4  # score from which a detection counts as confident
_MOST_OBJECTS = 40  # confident detections that an image may plausibly have
_OVERLAP = 0.5

_ONLY_OTHERS_TELL = ("scaling", "decoder", "rate", "standardized", "class_map")
READ_ALIKE = (*_ONLY_OTHERS_TELL, "mode")
"""Properties in which two models that are read alike may agree, although both are read wrongly."""

_CLEAR, _CLEAR_AGAINST_CONVENTION = 2.5, 4.0
"""Standard errors by which a decoding has to be better than the preferred one to replace it."""
_ALIKE = 0.03
"""Decodings whose figures differ by less than this share make no difference."""

Judge = Literal["labels", "the other model", "the model itself"]


class _StaysOpen:
    """A `Runtime` whose `close` leaves the other runtime open, for the next reading of its model."""

    def __init__(self, runtime: Runtime) -> None:
        self.inputs, self.outputs = runtime.inputs, runtime.outputs
        self.ranges, self.provider = runtime.ranges, runtime.provider
        self.run = runtime.run

    def close(self) -> None: ...


class Trials:
    """Runs readings of one model file on rows of data, each once. The file is loaded by the first one.

    Args:
        file: of the model.
        task: whose outputs the readings give.
        rows: each with the inputs of the readings by name.
        options: how the model runs.
        budget_s: of all decodings of one choice, in seconds; it limits the number of rows.
    """

    def __init__(
        self, file: Path, task: AnyTask, rows: Sequence[Arrays], options: RuntimeOptions, budget_s: float = BUDGET_S
    ) -> None:
        self.task = task
        self._file, self._options, self._runtime = file, options, runtime_of(file)
        # The bundle of a trial is the model's folder; other files of its steps may be in folders above.
        self._folder = file.absolute().parent
        self._artefact = self._artefact_of(file)
        self._rows = list(rows)
        self._outputs: dict[tuple[object, ...], Arrays] = {}
        self._row_s: dict[tuple[int, int] | None, float] = {}  # by the size of images
        self._budget_s = budget_s
        self._loaded: Runtime | None = None

    def close(self) -> None:
        """Frees the model; calling it twice is harmless."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def image(self, row: int) -> bytes | None:
        """Returns the encoded image of a row; None if the rows are no images."""
        found = self._rows[row].get("image")
        return None if found is None else found[0]

    def outputs(self, reading: Reading, count: int | None = None) -> Arrays:
        """Returns the canonical outputs of a reading for the first `count` rows, all without it.

        Raises:
            FirstlineError: the steps do not fit the model, or it fails on a row.
        """
        count = len(self._rows) if count is None else min(count, len(self._rows))
        key = reading.feeds, reading.postprocess, reading.output, self.task.digest
        outputs = self._outputs.get(key)
        done = 0 if outputs is None else len(next(iter(outputs.values())))
        if outputs is None or done < count:
            found = [] if outputs is None else [outputs]
            with closing(self._load(reading)) as loaded:
                begin_s = time.perf_counter()
                found += [loaded.predict(row).outputs for row in self._rows[done:count]]
                self._row_s[reading.size] = (time.perf_counter() - begin_s) / (count - done)
            outputs = self._outputs[key] = join_rows(found)
        return {name: array[:count] for name, array in outputs.items()}

    def affordable(self, reading: Reading, decodings: int) -> int:
        """Returns the number of rows on which this many decodings run in the time that a choice may take."""
        if reading.size not in self._row_s:
            self.outputs(reading, 1)  # the first run pays for what decoders and runtimes do lazily
            self.outputs(reading, min(4, len(self._rows)))
        most = int(self._budget_s / decodings / max(self._row_s[reading.size], 1e-6))
        return min(len(self._rows), max(_FEWEST_ROWS, most))

    def use(self, count: int) -> None:
        """Leaves out all rows after the first `count`."""
        del self._rows[count:]

    def _load(self, reading: Reading) -> LoadedModel:
        if self._loaded is None:
            self._loaded = load_runtime(self._file, self._runtime, self._options)
        return load_around(_StaysOpen(self._loaded), self._bundle(reading), self._model(reading), self._options)

    def _model(self, reading: Reading) -> Model:
        return Model(
            id=self._file.name,
            artefact=self._artefact,
            runtime=self._runtime,
            precision="",
            inputs=tuple(
                ModelInput(feed.spec.name, feed.tensor, self._with_files(parse_preprocess(feed.steps)))
                for feed in reading.feeds
            ),
            postprocess=self._with_files(parse_postprocess(reading.postprocess)),
            output=reading.output,
            batch=1 if reading.without_rows else None,
            without_rows=reading.without_rows,
        )

    def _bundle(self, reading: Reading) -> Bundle:
        task = self.task
        manifest = Manifest(
            name="trial",
            version=1,
            task=task,
            inputs=tuple({feed.spec.name: feed.spec for feed in reading.feeds}.values()),
            edge=(self._model(reading),),
            policy=Policy(Score(first_score(task, reading))),
        )
        return Bundle(self._folder, manifest)

    def _artefact_of(self, file: Path) -> Artefact:
        content = file.read_bytes()
        return Artefact(os.path.relpath(file, self._folder), hashlib.sha256(content).hexdigest(), len(content))

    def _with_files(self, steps: Sequence[Any]) -> tuple[Any, ...]:
        return with_artefacts(steps, lambda step: self._artefact_of(step.file))


def first_score(task: AnyTask, reading: Reading) -> str:
    """Returns the score that a policy begins with: one that the model can have."""
    if "product" in task.score_kinds:
        return "product"
    steps = parse_postprocess(reading.postprocess)
    return next(kind for kind in task.score_kinds if not task.unscored(kind, steps))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class DecodingDecision:
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
) -> DecodingDecision:
    """Tries the values of a choice, and compares them row by row.

    Args:
        trials: of the model.
        reading: with other choices made, or at their preferred values.
        choice: one of its choices.
        truth: labels of the trials' rows, in the form of the task; None without labels.
        others: the outputs of the other model for them, in each way in which it may be decoded; the one that agrees
            best counts. Without any, the model itself is the judge.
    """
    judge: Judge = "labels" if truth is not None else "the other model" if others else "the model itself"
    most = trials.affordable(reading, len(choice.values))
    count = min(_ROWS, most)
    while True:
        rows = _rows(trials, reading, choice, count, others if truth is None else (truth,))
        decision = _compared(choice, rows, judge)
        # A wrong range or activation can make a model surer than the right one.
        unsettled = judge == "the model itself" and choice.field in _ONLY_OTHERS_TELL
        if judge == "the other model" and len(others) > 1 and choice.field in READ_ALIKE:
            unsettled = _even(decision)
        if unsettled and not choice.known:
            decision = replace(
                decision, sure=False, why=f"only the data's labels or a settled model could tell: {decision.why}"
            )
        if decision.sure or count == most:
            return decision
        count = min(2 * count, most)


def _rows(
    trials: Trials, reading: Reading, choice: Choice, count: int, references: Sequence[Arrays]
) -> dict[str, NDArray[np.float64]]:
    """Returns the figure of each row by value; values that do not fit the model are left out.

    Raises:
        ConfigError: none of them fits.
    """
    rows: dict[str, NDArray[np.float64]] = {}
    fault = ""
    for value in choice.values:
        try:
            outputs = trials.outputs(reading.with_value(choice, value), count)
        except FirstlineError as error:
            fault = error.message
            continue
        if not references:
            rows[value] = information(trials.task, outputs)
            continue
        first = ({name: array[:count] for name, array in reference.items()} for reference in references)
        rows[value] = max((similarity(trials.task, outputs, reference) for reference in first), key=_mean)
    if not rows:
        raise ConfigError(f"No way of decoding fits the model and the data: {fault}")
    return rows


def _compared(choice: Choice, rows: Mapping[str, NDArray[np.float64]], judge: Judge) -> DecodingDecision:
    figures = {value: _mean(found) for value, found in rows.items()}

    def decided(value: str, why: str, *, sure: bool = True) -> DecodingDecision:
        return DecodingDecision(choice, value, sure, why, figures)

    preferred = next(value for value in choice.values if value in rows)
    best = max(figures, key=lambda value: figures[value])
    meaning, shown = choice.meaning, f"{figures[best]:.3f}"
    if best == preferred:
        others = [value for value in figures if value != best]
        if not others:
            return decided(best, f"{meaning(best)}: the only way that fits")
        second = max(others, key=lambda value: figures[value])
        clear = _standard_errors(rows[best], rows[second]) >= _CLEAR
        if clear or choice.known or _alike(figures[best], figures[second]):
            how = f"confirmed by {judge}" if clear else f"the usual way, and judged by {judge} no other is better"
            return decided(best, f"{meaning(best)}: {how} ({shown} against {figures[second]:.3f} of {meaning(second)})")
        why = f"{meaning(best)} or {meaning(second)}: {judge} cannot tell ({shown} and {figures[second]:.3f})"
        return decided(best, why, sure=False)
    errors = _standard_errors(rows[best], rows[preferred])
    gain = f"({shown} against {figures[preferred]:.3f} of the usual way, {meaning(preferred)})"
    if errors >= (_CLEAR_AGAINST_CONVENTION if choice.known else _CLEAR):
        return decided(best, f"{meaning(best)}: settled by {judge} {gain}")
    if _alike(figures[best], figures[preferred]) or (choice.known and errors < _CLEAR):
        why = f"{meaning(preferred)}: the usual way, and judged by {judge} no other is clearly better"
        return decided(preferred, why)
    return decided(preferred, f"{meaning(best)} or {meaning(preferred)}: {judge} cannot tell {gain}", sure=False)


def _even(decision: DecodingDecision) -> bool:
    """Returns whether another value is about as good as the best one."""
    *_, second, best = (0.0, *sorted(decision.figures.values()))
    return len(decision.figures) > 1 and _alike(best, second)


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
        # The cosine, so that a model that is sure of everything gains nothing.
        norm = np.linalg.norm(probabilities, axis=1)
        if LABEL in reference:
            labels = reference[LABEL]
            found = probabilities[np.arange(len(labels)), np.maximum(labels, 0)] / np.maximum(norm, 1e-9)
            return np.where(labels == UNLABELLED, np.nan, found)
        theirs = reference[PROBABILITIES].astype(np.float64)
        norm *= np.linalg.norm(theirs, axis=1)
        agreement: NDArray[np.float64] = (probabilities * theirs).sum(axis=1) / np.maximum(norm, 1e-9)
        return agreement
    if isinstance(task, Regression):
        return _closeness(outputs[VALUES], reference[VALUES])
    if isinstance(task, Anomaly) and LABEL in reference:
        return _separation(outputs[SCORE].astype(np.float64), reference[LABEL])
    agreed: NDArray[np.float64] = 1.0 - task.loss(outputs, reference).astype(np.float64)
    is_label = reference.keys() < outputs.keys()  # such as a mask without its confidence
    return np.where(task.labelled(reference), agreed, np.nan) if is_label else agreed


def _closeness(ours: Array, theirs: Array) -> NDArray[np.float64]:
    """Returns 1 / (1 + difference) of each row, in tenths of the reference's value and of its usual size."""
    reference = theirs.astype(np.float64)
    unit = 0.1 * np.abs(reference) + 0.01 * float(np.nanmedian(np.abs(reference))) + 1e-12
    return np.asarray((1 / (1 + np.abs(ours - reference) / unit)).mean(axis=1))


def _separation(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns for each row the share of the other label's rows that its score is on the right side of, or NaN.

    The mean is the AUROC. Anomalies are on the side that makes it 0.5 or more, because no operating score is known yet.
    """
    anomalous, normal = labels == 1, labels == 0
    found = np.full(len(scores), np.nan)
    found[anomalous] = _share_below(scores[anomalous], scores[normal])
    found[normal] = 1 - _share_below(scores[normal], scores[anomalous])
    return found if _mean(found) >= 0.5 else 1 - found


def _share_below(scores: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns for each score the share of lower ones among others, (n,); equal ones count half. NaN without others."""
    if not len(others):
        return np.full(len(scores), np.nan)
    ordered = np.sort(others)
    lower, not_higher = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return np.asarray((lower + not_higher) / (2 * len(others)), np.float64)


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
