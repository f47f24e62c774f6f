"""Classification: one probability per label, in the output `probabilities`, FP32 [rows, labels]. Pure.

Scores and features follow from the probabilities; the score "energy" needs the logits too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError
from firstline_core.processing.compile import compile_postprocess
from firstline_core.processing.steps import PostStep, Softmax, shows_logits
from firstline_core.tasks.arrays import LABEL, of_shape, some_labelled
from firstline_core.tasks.base import ConfiguredTask, DeclaredOutputs, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import PROBABILITIES, Array, Arrays, TensorSpec, row_count

Probabilities = NDArray[np.float32]

_TOP = 5

LOGITS = "logits"
"""The evidence of the score "energy": the input of the softmax step, FP32 [rows, labels]."""

_LEAST = np.float32(1e-7)
"""The smallest probability that `temper` uses."""

_CLASSES_AT_MOST = 64  # above this, no selection part has enough rows of each class

_SMALLEST = np.float32(1 / 512)  # half a step of a quantised softmax, as the lower bound of its zeros

# A quantised softmax of ten labels sums to 0.91 or more; a sum over 1 comes from rounding alone.
_LEAST_SUM, _MOST_SUM = 0.85, 1.05
# Half a step of a softmax in eight bits: what rounding changes in one label.
_HALF_STEP = 1 / 512
# Rounding of 32-bit arithmetic: a dequantised 255 x (1 / 255) is slightly above 1.
_SLACK = 1e-6
# Least probability of an independent label that is in the answer, without thresholds.
_LEAST_OF_SET = 0.5


class Classification(ConfiguredTask, frozen=True, tag="classification"):
    """A classifier: `probabilities` FP32 [-1, labels] in the order of the labels.

    The answer is the likeliest label. With independent labels it is the set of those that reach their thresholds.

    Args:
        labels: at least two.
        independent: whether each label has a probability of its own; otherwise a row's probabilities sum to about 1.
        thresholds: of independent labels, one for each; () for 0.5. Scores are of the probabilities whose log-odds are
            moved so that a threshold becomes 0.5.
    """

    score_kinds: ClassVar[tuple[str, ...]] = ("max_probability", "margin", "entropy", "energy")
    graph_scores: ClassVar[bool] = True
    quality: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    labels: tuple[str, ...]
    independent: bool = False
    thresholds: tuple[Annotated[float, Meta(gt=0, lt=1)], ...] = ()

    def __post_init__(self) -> None:
        if len(self.labels) < 2:
            raise ValueError("a classifier needs at least two labels")
        if self.thresholds and not (self.independent and len(self.thresholds) == len(self.labels)):
            raise ValueError("thresholds are of independent labels, one for each")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(PROBABILITIES, "FP32", (-1, len(self.labels))),)

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(LOGITS, "FP32", (-1, len(self.labels))),)

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        if self.independent:
            return (TensorSpec(LABEL, "BOOL", (-1, len(self.labels))),)
        return (TensorSpec(LABEL, "INT64", (-1,)),)

    @property
    def event_classes(self) -> tuple[str, ...]:
        return self.labels

    @property
    def digest(self) -> str:
        """Returns the sha256 of `independent` and the thresholds, or "": labels name columns, and change no number."""
        thresholds = msgspec.json.encode(self.thresholds) if self.thresholds else b""
        return hashlib.sha256(b"independent" + thresholds).hexdigest() if self.independent else ""

    def declared(self, *, rounded: bool, cut: bool) -> DeclaredOutputs:
        """Returns the declaration: the probabilities of labels that exclude each other sum to about 1.

        With a thousand labels, rounding to 0 alone can take most of the sum. Classes that are left out may have any
        share.
        """
        if self.independent:
            return DeclaredOutputs(self.outputs, probability_fault)
        rounding = len(self.labels) * _HALF_STEP if rounded else 0.0
        least_sum, most_sum = 0.0 if cut else min(_LEAST_SUM, 1 - rounding), max(_MOST_SUM, 1 + rounding)
        return DeclaredOutputs(self.outputs, partial(probability_fault, least_sum=least_sum, most_sum=most_sum))

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the steps; the logits are evidence if there is a softmax step and no graph."""
        name, labels = model.port(model.output), len(self.labels)
        to_probabilities, to_logits = compile_postprocess(model.steps, model.load_graph), None
        if shows_logits(model.steps):
            steps = [step for step in model.steps if not isinstance(step, Softmax)]
            to_logits = compile_postprocess(steps, model.load_graph)

        wanted = f"the bundle has {labels} labels; correct the labels, the output's name or the label offset"

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            probabilities = of_shape(to_probabilities(raw[name]), (row_count(rows), labels), model.what, wanted)
            evidence = {} if to_logits is None else {LOGITS: to_logits(raw[name])}
            return Prediction({PROBABILITIES: probabilities}, evidence)

        return Postprocess((name,), run)

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        if self.independent:
            return set_score(kind, self._centred(outputs), temperature=temperature)
        return score(kind, outputs[PROBABILITIES], evidence.get(LOGITS), temperature=temperature)

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        if kind != "energy":
            return ""
        if self.independent:
            return "needs labels that exclude each other; there are margin, max_probability, entropy and learned"
        return "" if shows_logits(steps) else "needs logits: a softmax and no graph in its postprocessing"

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        return set_features(self._centred(outputs)) if self.independent else features(outputs[PROBABILITIES])

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns 1 - the probability of the answer: of the label, or of the set if all labels are independent."""
        if self.independent:
            return np.asarray(1 - _of_decisions(self._centred(outputs), 1.0).prod(axis=1), np.float32)
        return np.float32(1) - max_probability(outputs[PROBABILITIES])

    def groups(self, outputs: Arrays) -> Sequence[str]:
        return [self.labels[label] for label in outputs[PROBABILITIES].argmax(axis=1).tolist()]

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        return self._answers(outputs).astype(np.int64)

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns 1 where the label or the set of labels differs, else 0."""
        return np.asarray((self._answers(edge) != self._answers(full)).any(axis=1), np.float32)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        if self.independent:
            return np.asarray((self._answers(outputs) != truth[LABEL]).any(axis=1), np.float32)
        return np.asarray(outputs[PROBABILITIES].argmax(axis=1) != truth[LABEL], np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns the accuracy of the labelled rows, and the mean F1 of the labels that occur in them.

        An answer with independent labels is right if the whole set is.
        """
        if self.independent:
            return _set_summary(self._answers(outputs), truth[LABEL])
        known = some_labelled(truth, "The accuracy")
        said, true = outputs[PROBABILITIES].argmax(axis=1)[known], truth[LABEL][known]
        count = len(self.labels)
        right = np.bincount(true[said == true], minlength=count)
        occurs = np.bincount(true, minlength=count)
        f1 = 2 * right / np.maximum(occurs + np.bincount(said, minlength=count), 1)
        return {"accuracy": float((said == true).mean()), "f1": float(f1[occurs > 0].mean())}

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the likeliest label, its probability, and as `top` the five likeliest ones.

        Independent labels that are in the answer are listed in `labels`, and there may be none.
        """
        found = labelled(outputs[PROBABILITIES][row], self.labels)
        if self.independent:
            found["labels"] = [self.labels[label] for label in np.flatnonzero(self._answers(outputs)[row]).tolist()]
        return found

    def title(self, outputs: Arrays, row: int) -> str:
        found = self.describe(outputs, row)
        if self.independent:
            return ", ".join(found["labels"]) or "none"
        return f"{found['label']} {found['probability']:.2f}"

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        return float(np.abs(expected[PROBABILITIES].astype(np.float64) - actual[PROBABILITIES]).max(initial=0))

    def _centred(self, outputs: Arrays) -> Probabilities:
        """Returns the probabilities with log-odds moved so that the threshold of each label becomes 0.5."""
        probabilities: Probabilities = outputs[PROBABILITIES]
        if not self.thresholds:
            return probabilities
        least = np.asarray(self.thresholds, np.float32)
        inside = probabilities * (1 - least)
        return np.asarray(inside / (inside + (1 - probabilities) * least), np.float32)

    def _answers(self, outputs: Arrays) -> NDArray[np.bool_]:
        """Returns the labels of each answer, (n, labels)."""
        probabilities = outputs[PROBABILITIES]
        if self.independent:
            return np.asarray(probabilities >= np.asarray(self.thresholds or _LEAST_OF_SET, np.float32), np.bool_)
        return np.asarray(probabilities.argmax(axis=1)[:, None] == np.arange(len(self.labels)), np.bool_)


def _set_summary(said: NDArray[np.bool_], true: NDArray[np.bool_]) -> dict[str, float]:
    f1 = 2 * (said & true).sum(axis=0) / np.maximum(said.sum(axis=0) + true.sum(axis=0), 1)
    occurs = true.any(axis=0)
    whole = float((said == true).all(axis=1).mean())
    return {"accuracy": whole, "f1": float(f1[occurs].mean()) if occurs.any() else 0.0}


def probability_fault(outputs: Arrays, *, least_sum: float = 0.0, most_sum: float = math.inf) -> str:
    """Returns what is wrong with the values of a classifier's output, as a noun; "" if nothing is.

    Values must be finite and in [0, 1], and each row must sum to a value within the limits.

    Args:
        outputs: has the probabilities, (n, labels).
        least_sum: of a row's probabilities.
        most_sum: of a row's probabilities.
    """
    probabilities = outputs[PROBABILITIES]
    # NaN is the least and the greatest, and fails every comparison. A reduction would take three times as long.
    lowest, highest = probabilities.item(probabilities.argmin()), probabilities.item(probabilities.argmax())
    if lowest >= -_SLACK and highest <= 1 + _SLACK:
        sums = np.add.reduce(probabilities, axis=1).tolist()
        if least_sum <= min(sums) and max(sums) <= most_sum:
            return ""
    return _described(probabilities, least_sum, most_sum)


def _described(probabilities: NDArray[np.float32], least_sum: float, most_sum: float) -> str:
    count = len(probabilities)
    finite = np.isfinite(probabilities).all(axis=1)
    if not finite.all():
        return f"NaN or infinity for {count - int(finite.sum())} of {count} rows"
    outside = ((probabilities < -_SLACK) | (probabilities > 1 + _SLACK)).any(axis=1)
    if outside.any():
        least, most = probabilities.min(), probabilities.max()
        return f"values from {least:.3g} to {most:.3g} for {int(outside.sum())} of {count} rows, outside of 0 to 1"
    sums = probabilities.sum(axis=1)
    worst = sums[np.argmax(np.maximum(least_sum - sums, sums - most_sum))]
    return (
        f"a row that sums to {worst:.3g}, outside of {least_sum:.3g} to {most_sum:.3g}, although its "
        "labels exclude each other"
    )


def labelled(probabilities: Probabilities, labels: Sequence[str]) -> dict[str, Any]:
    """Returns the answer to one row for people, as JSON values.

    Args:
        probabilities: (classes,).
        labels: by class; a class without a label is named by its number.
    """
    likeliest = np.argsort(-probabilities, kind="stable")[:_TOP]
    top = [
        {"label": labels[index] if index < len(labels) else str(index), "probability": float(probabilities[index])}
        for index in likeliest
    ]
    return {"label": top[0]["label"], "probability": top[0]["probability"], "top": top}


def temper(probabilities: Probabilities, temperature: float) -> Probabilities:
    """Applies temperature scaling (Guo et al. 2017, "On Calibration of Modern Neural Networks") to probabilities.

    softmax(log p / T) equals softmax(logits / T), so no logits are needed. A quantised softmax rounds its tails to
    zero; they are raised to 1e-7, which keeps the logarithm finite and the order unchanged.

    Args:
        probabilities: (n, classes) in [0, 1]; rows need not sum to 1.
        temperature: above 1 flattens, below 1 sharpens, 1 only normalises the rows.

    Returns:
        (n, classes) float32, rows sum to 1.
    """
    # In double precision, so that scores are rounded once: equal rows must get equal scores, because ties are a large
    # share of an overconfident model's rows.
    tempered = np.maximum(probabilities, _LEAST, dtype=np.float32).astype(np.float64)
    if temperature != 1.0:
        np.log(tempered, out=tempered)
        tempered /= temperature
        tempered -= np.maximum.reduce(tempered, axis=-1, keepdims=True)
        np.exp(tempered, out=tempered)
    tempered /= np.add.reduce(tempered, axis=-1, keepdims=True)
    return tempered.astype(np.float32)


def max_probability(probabilities: Probabilities) -> Scores:
    """Returns the highest probability, (n,) in [0, 1]."""
    best: Scores = np.maximum.reduce(probabilities, axis=-1)
    return best


def margin(probabilities: Probabilities) -> Scores:
    """Returns the gap between the two most likely classes, (n,) in [0, 1]; 0 for a tie."""
    top = np.partition(probabilities, -2, axis=-1)[:, -2:]
    gap: Scores = top[:, 1] - top[:, 0]
    return gap


def entropy(probabilities: Probabilities) -> Scores:
    """Returns one minus the entropy divided by log(classes), (n,) in [0, 1]; 0 for a uniform row."""
    # 0 log 0 is 0; NaN stays NaN, because a row with NaN must not look certain.
    terms = probabilities * np.log(np.where(probabilities > 0, probabilities, 1.0))
    certainty = 1.0 + terms.sum(axis=-1) / np.log(probabilities.shape[-1])
    clipped: Scores = np.clip(certainty, 0.0, 1.0).astype(np.float32)
    return clipped


def score(kind: str, probabilities: Probabilities, logits: Array | None = None, *, temperature: float = 1.0) -> Scores:
    """Scores each row after temperature scaling.

    Args:
        kind: of the score, one of `Classification.score_kinds`.
        probabilities: (n, classes) float32.
        logits: (n, classes), the input of the softmax step; only "energy" needs them.
        temperature: see `temper`.

    Returns:
        (n,) float32, higher means more certain; in [0, 1], except for "energy".

    Raises:
        InvalidTensorError: not a matrix, fewer than two classes, or missing logits.
    """
    if kind == "energy":
        if logits is None:
            raise InvalidTensorError("The score 'energy' needs logits; this model shows none.")
        return energy(logits, temperature)
    if probabilities.ndim != 2 or probabilities.shape[1] < 2:
        raise InvalidTensorError(
            f"A score needs probabilities of shape [rows, classes >= 2], got {list(probabilities.shape)}."
        )
    return _OF_PROBABILITIES[kind](temper(probabilities, temperature))


_OF_PROBABILITIES = {"max_probability": max_probability, "margin": margin, "entropy": entropy}


def energy(logits: Array, temperature: float = 1.0) -> Scores:
    """Returns the negative free energy T log sum exp(logits / T), which is large for inputs like the training data.

    Liu et al. 2020, "Energy-based Out-of-distribution Detection", with the sign for which higher means more certain. It
    needs logits, because a softmax discards it.

    Args:
        logits: (n, classes).
        temperature: above 0.

    Returns:
        (n,) float32, unbounded.
    """
    scaled = logits / np.float32(temperature)
    highest = scaled.max(axis=-1)
    summed = np.log(np.exp(scaled - highest[..., None]).sum(axis=-1))
    found: Scores = (np.float32(temperature) * (highest + summed)).astype(np.float32)
    return found


def features(probabilities: Probabilities) -> NDArray[np.float32]:
    """Returns the inputs of the score: confidence measures and the predicted class.

    The class matters if a quantised softmax saturates: a quarter of the answers may share one margin, although the edge
    model is wrong ten times as often for one class as for another.

    Args:
        probabilities: (n, classes), classes >= 2.

    Returns:
        (n, 4) margin, certainty (one minus the entropy) and the logarithms of the two highest probabilities; then, for
        up to 64 classes, the one-hot predicted class.
    """
    rows = temper(probabilities, 1.0)
    top = np.sort(np.partition(rows, -2, axis=-1)[:, -2:], axis=-1)
    found = [top[:, 1] - top[:, 0], entropy(rows), np.log(np.maximum(top, _SMALLEST))]
    if rows.shape[1] <= _CLASSES_AT_MOST:
        found.append(np.eye(rows.shape[1], dtype=np.float32)[probabilities.argmax(axis=-1)])
    return np.column_stack(found).astype(np.float32, copy=False)


def set_score(kind: str, probabilities: Probabilities, *, temperature: float = 1.0) -> Scores:
    """Scores answers of independent labels: each label is in the answer, or is not.

    - `margin`: the smallest distance of a probability from 0.5, times 2.
    - `max_probability`: the smallest probability of a label's decision.
    - `entropy`: 1 - the mean entropy of the decisions in bits.

    Args:
        kind: of the score; "energy" needs labels that exclude each other.
        probabilities: (n, labels) float32, each label by itself.
        temperature: divides the log-odds.

    Returns:
        (n,) float32, in [0, 1].

    Raises:
        InvalidTensorError: the score needs labels that exclude each other.
    """
    if kind == "energy":
        raise InvalidTensorError("The score 'energy' needs labels that exclude each other.")
    decided = _of_decisions(probabilities, temperature)
    if kind == "entropy":
        others = np.maximum(1 - decided, _LEAST)
        entropies = -(decided * np.log2(decided) + others * np.log2(others))
        return np.asarray(np.clip(1 - entropies.mean(axis=1), 0, 1), np.float32)
    least = decided.min(axis=1)
    return np.asarray(least if kind == "max_probability" else 2 * least - 1, np.float32)


def set_features(probabilities: Probabilities) -> NDArray[np.float32]:
    """Returns the inputs of learned scores for independent labels, (n, 4) or (n, 4 + labels).

    The scores `margin` and `entropy`, the logarithms of the two lowest probabilities of a decision, and for up to 64
    labels which of them are in the answer.
    """
    decided = _of_decisions(probabilities, 1.0)
    lowest = np.sort(np.partition(decided, 1, axis=1)[:, :2], axis=1)
    found = [2 * lowest[:, 0] - 1, set_score("entropy", probabilities), np.log(lowest)]
    if probabilities.shape[1] <= _CLASSES_AT_MOST:
        found.append(probabilities >= _LEAST_OF_SET)
    return np.column_stack(found).astype(np.float32, copy=False)


def _of_decisions(probabilities: Probabilities, temperature: float) -> NDArray[np.float32]:
    """Returns the probability of the decision about each label, at least 0.5, with divided log-odds."""
    decided = np.clip(np.maximum(probabilities, 1 - probabilities), _LEAST_OF_SET, 1 - _LEAST)
    if temperature == 1:
        return np.asarray(decided, np.float32)
    odds = ((1 - decided) / decided).astype(np.float64) ** (1 / temperature)
    return np.asarray(1 / (1 + odds), np.float32)
