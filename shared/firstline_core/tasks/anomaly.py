"""Anomalies: a score, and whether it is beyond the model's operating score. Pure.

The outputs are `score` FP32 [n] and `anomalous` BOOL [n]. Scores of different models are on different scales, so each
model has its own operating score, in its step `threshold`, and decisions are compared. How far a score lies beyond the
operating score is evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing import steps as ops
from firstline_core.processing.compile import compile_postprocess
from firstline_core.processing.standardize import OBSERVED
from firstline_core.tasks.arrays import LABEL, in_other_layout, of_shape, some_labelled
from firstline_core.tasks.base import ConfiguredTask, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import Array, Arrays, TensorSpec, row_count
from firstline_core.units import DAY_S

SCORE, ANOMALOUS = "score", "anomalous"
"""Outputs FP32 (n,) and BOOL (n,)."""

DISTANCE = "distance"
"""Evidence FP32 (n,): the score minus the operating score, in units of the step's `scale`; above 0 is anomalous."""

TIME, SEQUENCE = "time", "sequence"
"""Truths that delays and rates need: FP64 (n,), seconds, and INT64 (n,), the number of each row's recording."""

_LEAST_SPREAD = 1e-6  # keeps residuals finite if a model expects no error


class Anomaly(ConfiguredTask, frozen=True, tag="anomaly"):
    """A model that recognises what is not normal.

    Attributes:
        labels: the names of both decisions.
    """

    score_kinds: ClassVar[tuple[str, ...]] = ("decisiveness", "normality")
    quality: ClassVar[str] = "f1"
    higher_is_better: ClassVar[bool] = True

    labels: tuple[str, str] = ("normal", "anomaly")

    def __post_init__(self) -> None:
        if self.labels[0] == self.labels[1]:
            raise ValueError("both decisions have the same label")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return TensorSpec(SCORE, "FP32", (-1,)), TensorSpec(ANOMALOUS, "BOOL", (-1,))

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(DISTANCE, "FP32", (-1,)),)

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the number of the label, -1 if it is not known; then what delays and rates need, if it is known."""
        return (
            TensorSpec(LABEL, "INT64", (-1,)),
            TensorSpec(TIME, "FP64", (-1,)),
            TensorSpec(SEQUENCE, "INT64", (-1,)),
        )

    @property
    def event_classes(self) -> tuple[str, ...]:
        return self.labels[1:]

    @property
    def digest(self) -> str:
        """Returns "": labels name the decisions, and change no number."""
        return ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the steps to one number for each row, and the step `threshold` after them."""
        match model.steps:
            case [*steps, ops.Threshold() as last] if not any(isinstance(step, ops.Threshold) for step in steps):
                pass
            case _:
                raise ModelLoadError("Postprocessing of an anomaly model: threshold comes last, and once.")
        compared = steps[0] if steps and isinstance(steps[0], ops.Reconstruction | ops.Residual) else None
        steps = steps[1:] if compared is not None else steps
        if not all(isinstance(step, ops.Sigmoid | ops.Softmax | ops.Columns | ops.Graph) for step in steps):
            raise ModelLoadError(
                "Postprocessing of an anomaly model: reconstruction or residual first, then sigmoid, softmax, columns "
                "and graph."
            )
        name, to_score = model.port(model.output), compile_postprocess(steps, model.load_graph)
        spread = model.port(compared.spread) if isinstance(compared, ops.Residual) and compared.spread else ""
        scale = last.scale or abs(last.value) or 1.0
        direction = 1 if last.side == "above" else -1

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            output = raw[name]
            if isinstance(compared, ops.Reconstruction):
                output = _error(_reconstruction(output, rows), compared.of)
            elif compared is not None:
                output = _error(_residual(output, rows[OBSERVED], raw[spread] if spread else None), compared.of)
            wanted = "an anomaly has one score; select it with columns"
            score = of_shape(to_score(output), (row_count(rows), 1), model.what, wanted)[:, 0]
            distance = (direction * (score.astype(np.float64) - last.value) / scale).astype(np.float32)
            anomalous = direction * (score.astype(np.float64) - last.value) >= 0
            return Prediction({SCORE: score, ANOMALOUS: anomalous}, {DISTANCE: distance})

        needs = (OBSERVED,) if isinstance(compared, ops.Residual) else ()
        return Postprocess((name, spread) if spread else (name,), run, needs)

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row, in [0, 1].

        With d, the distance of the score from the operating score in units of the step's `scale`:

        - `decisiveness`: |d| / (1 + |d|): both decisions are accepted far from the operating score.
        - `normality`: half of 1 - d / (1 + |d|): anomalies are below 0.5, so that the full model confirms them.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: has `distance`.
            temperature: without effect, because there are no logits.

        Raises:
            InvalidTensorError: the evidence has no distance.
        """
        signed = _bounded(evidence)
        return np.asarray(np.abs(signed) if kind == "decisiveness" else (1 - signed) / 2, np.float32)

    def needs_event(self, steps: Sequence[ops.PostStep]) -> bool:
        return True

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count).

        The distance bounded to -1 to 1, its size, the logarithm of 1 + the distance's size, and the decision.
        """
        signed = _bounded(evidence)
        columns = [signed, np.abs(signed), np.log1p(np.abs(evidence[DISTANCE])), outputs[ANOMALOUS]]
        return np.column_stack(columns).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns half of 1 - `decisiveness`: at the operating score, either decision is as likely."""
        return np.asarray((1 - self.score("decisiveness", outputs, evidence)) / 2, np.float32)

    def groups(self, outputs: Arrays) -> Sequence[str]:
        return [self.labels[decision] for decision in outputs[ANOMALOUS].astype(int).tolist()]

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        return np.asarray(outputs[ANOMALOUS][:, None], np.int64)

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns 1 where the decisions differ, else 0."""
        return np.asarray(edge[ANOMALOUS] != full[ANOMALOUS], np.float32)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        return np.asarray(outputs[ANOMALOUS].astype(np.int64) != truth[LABEL], np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns F1, precision and recall of the rows, and figures of events.

        An event is a run of labelled anomalies in one sequence; rows are in the order of time. `events_found` is the
        share of events with at least one row that is recognised. `delay_rows` is the mean number of rows before the
        first of them, and with times `delay_s` the mean of the seconds. A false alarm is a run of rows that are wrongly
        anomalous; with times, `false_alarms_per_day` counts them. NaN is a figure without an event.

        Args:
            outputs: canonical outputs.
            evidence: is not used.
            truth: has `label`, and may have `time` and `sequence`.
        """
        known = some_labelled(truth, "The F1 score")
        said, true = outputs[ANOMALOUS][known], truth[LABEL][known] == 1
        sequence = truth[SEQUENCE][known] if SEQUENCE in truth else np.zeros(len(said), np.int64)
        order = np.argsort(sequence, kind="stable")  # rows of several sequences may alternate
        said, true, sequence = said[order], true[order], sequence[order]
        right = float((said & true).sum())
        figures = {
            "f1": 2 * right / max(float(said.sum() + true.sum()), 1.0),
            "precision": right / max(float(said.sum()), 1.0),
            "recall": right / max(float(true.sum()), 1.0),
        }
        events = list(_runs(true, sequence))
        starts = [(start, start + int(said[start:end].argmax())) for start, end in events if said[start:end].any()]
        figures["events_found"] = len(starts) / len(events) if events else float("nan")
        delays = [first - start for start, first in starts]
        figures["delay_rows"] = float(np.mean(delays)) if delays else float("nan")
        if TIME in truth and np.isfinite(truth[TIME][known]).all():
            time = truth[TIME][known][order]
            waits = [time[first] - time[start] for start, first in starts]
            figures["delay_s"] = float(np.mean(waits)) if waits else float("nan")
            seconds = sum(time[end - 1] - time[start] for start, end in _runs(np.ones(len(said), np.bool_), sequence))
            alarms = sum(1 for _ in _runs(said & ~true, sequence))
            figures["false_alarms_per_day"] = alarms * DAY_S / float(seconds) if seconds > 0 else float("nan")
        return {name: figure for name, figure in figures.items() if np.isfinite(figure)}

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the decision and the score."""
        return {ANOMALOUS: bool(outputs[ANOMALOUS][row]), SCORE: float(f"{outputs[SCORE][row]:.7g}")}

    def title(self, outputs: Arrays, row: int) -> str:
        return f"{self.labels[int(outputs[ANOMALOUS][row])]} {outputs[SCORE][row]:.4g}"

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of a score, relative to its size if that is above 1."""
        wanted = expected[SCORE].astype(np.float64)
        return float((np.abs(wanted - actual[SCORE]) / np.maximum(np.abs(wanted), 1)).max(initial=0))


def _bounded(evidence: Arrays) -> NDArray[np.float64]:
    """Returns the distance d as d / (1 + |d|), in -1 to 1."""
    if DISTANCE not in evidence:
        raise InvalidTensorError("The scores of anomaly models need the distance from the operating score.")
    distance = evidence[DISTANCE].astype(np.float64)
    return np.asarray(distance / (1 + np.abs(distance)), np.float64)


def _reconstruction(output: Array, rows: Arrays) -> NDArray[np.float64]:
    """Returns the size of the differences of an autoencoder's output and its input, (n, values)."""
    inputs = [array for name, array in rows.items() if not name.startswith("firstline/") and array.size == output.size]
    if len(inputs) != 1:
        raise InferenceError(
            f"The step reconstruction compares the output {list(output.shape)} with an input; none fits."
        )
    if in_other_layout(output.shape, inputs[0].shape):
        raise InferenceError(
            f"The step reconstruction compares the output {list(output.shape)} with the input "
            f"{list(inputs[0].shape)}; export the model with both in one layout."
        )
    return np.abs(output.reshape(len(output), -1).astype(np.float64) - inputs[0].reshape(len(output), -1))


def _residual(output: Array, observed: Array, spread: Array | None) -> NDArray[np.float64]:
    """Returns the size of the differences of a forecast and what was observed, (n, values), by the spread."""
    for found, what in ((output, "the forecast"), (spread, "the spread")):
        if found is not None and found.size != observed.size:
            raise InferenceError(
                f"The step residual compares {what} {list(found.shape)} with {list(observed.shape)} observed numbers; "
                "correct the number of observed."
            )
    size = np.abs(output.astype(np.float64).reshape(len(observed), -1) - observed.reshape(len(observed), -1))
    return size if spread is None else size / np.maximum(spread.reshape(size.shape), _LEAST_SPREAD)


def _error(size: NDArray[np.float64], of: str) -> Array:
    """Returns one number for each row, (n, 1)."""
    if of == "mean_square":
        return np.asarray((size**2).mean(axis=1, keepdims=True))
    return np.asarray(size.mean(axis=1, keepdims=True) if of == "mean_absolute" else size.max(axis=1, keepdims=True))


def _runs(found: NDArray[np.bool_], sequence: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields the first row of each run within a sequence, and the row after its last one."""
    breaks = np.flatnonzero((np.diff(found) != 0) | (np.diff(sequence) != 0)) + 1
    edges = [0, *breaks.tolist(), len(found)]
    for start, end in pairwise(edges):
        if end > start and found[start]:
            yield start, end
