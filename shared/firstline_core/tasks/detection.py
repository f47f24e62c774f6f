"""Detection: boxes with classes and scores. Pure.

The outputs are `boxes` FP32 [n, k, 4] in pixels of the upright original image, `scores` FP32 [n, k], `classes` INT64
[n, k] and `count` INT64 [n], best first; padding follows, with 0 and class -1. Boxes below the
model's operating score are evidence: the same names with the prefix `candidate_`.

Frames without an object outnumber the others, so a share of frames that differ hides missed objects. The loss has
therefore events, such as "missed person", each with a condition: the frames that count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Meta, field
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError
from firstline_core.processing.boxes import (
    BOXES,
    CANDIDATE,
    CLASSES,
    COUNT,
    SCORES,
    Boxes,
    compile_detection,
    intersection_over_union,
    outputs_read,
    partners,
)
from firstline_core.processing.geometry import GEOMETRY
from firstline_core.processing.steps import PostStep
from firstline_core.tasks.arrays import numbered
from firstline_core.tasks.average_precision import average_precision
from firstline_core.tasks.base import ConfiguredTask, Misses, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.drawing import COLOURS, line_width, write
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import Arrays, TensorSpec

if TYPE_CHECKING:
    from PIL import Image

_Share = Annotated[float, Meta(gt=0, le=1)]
_Pixels = Annotated[float, Meta(ge=0, le=16384)]
_SLACK = 1e-6  # rounding of 32-bit arithmetic
_CLASSES_AT_MOST = 64  # above this, no selection part has enough rows of each class


class Objects(NamedTuple):
    """Objects of an edge model and a full model, counted for each row and group: INT64 (n, groups).

    Attributes:
        found: of the full model, with a match of the edge model.
        missed: of the full model, without a match.
        invented: of the edge model, without a match of the full model.
    """

    found: NDArray[np.int64]
    missed: NDArray[np.int64]
    invented: NDArray[np.int64]


class Detection(ConfiguredTask, frozen=True, tag="detection"):
    """A detector.

    The edge model's box matches the full model's if both are of one group and overlap enough. Each box matches at most
    one.

    Attributes:
        labels: of the classes, in their order.
        k: number of boxes of a row in the outputs, padding included.
        class_groups: labels that are not told apart, by the name of their group; every other label is a group.
        iou: intersection over union from which boxes match.
        small_iou: the same for objects below `small_side`.
        small_side: square root of the area, in pixels.
        least_side: smaller objects are neither missed nor invented, in pixels.
    """

    score_kinds: ClassVar[tuple[str, ...]] = ("minimum_confidence", "mean_confidence", "no_candidate", "product")
    compares_evidence: ClassVar[bool] = True
    quality: ClassVar[str] = "map50"
    higher_is_better: ClassVar[bool] = True
    view_options: ClassVar[tuple[str, ...]] = ("min_score", "classes", "max_objects")
    in_pixels: ClassVar[bool] = True

    labels: Annotated[tuple[str, ...], Meta(min_length=1)]
    k: Annotated[int, Meta(ge=1, le=1000)] = 100
    class_groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    iou: _Share = 0.5
    small_iou: _Share = 0.3
    small_side: _Pixels = 32.0
    least_side: _Pixels = 0.0

    def __post_init__(self) -> None:
        grouped = [label for labels in self.class_groups.values() for label in labels]
        for label in grouped:
            if label not in self.labels:
                raise ValueError(f"class_groups name the label '{label}', which does not exist")
            if grouped.count(label) > 1:
                raise ValueError(f"label '{label}' is in two groups; it belongs to one")
        for name in self.class_groups:
            if name in self.labels and name not in grouped:
                raise ValueError(f"the group '{name}' has the name of a label outside of it")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec(BOXES, "FP32", (-1, self.k, 4)),
            TensorSpec(SCORES, "FP32", (-1, self.k)),
            TensorSpec(CLASSES, "INT64", (-1, self.k)),
            TensorSpec(COUNT, "INT64", (-1,)),
        )

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        kept = [spec for spec in self.outputs if spec.name != COUNT]
        return tuple([TensorSpec(CANDIDATE + spec.name, spec.datatype, spec.shape) for spec in kept])

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the form of the outputs, with any number of boxes; their scores are not read."""
        return tuple(
            TensorSpec(spec.name, spec.datatype, (-1, -1, *spec.shape[2:])[: len(spec.shape)]) for spec in self.outputs
        )

    @property
    def event_classes(self) -> tuple[str, ...]:
        """Returns the groups in the order of their first labels."""
        return tuple(dict.fromkeys(self._groups_of_labels()))

    def fault(self, outputs: Arrays) -> str:
        boxes, scores, classes, count = (outputs[name] for name in (BOXES, SCORES, CLASSES, COUNT))
        if not (count.min() >= 0 and count.max() <= self.k):
            return f"a count outside of 0 to {self.k}"
        used = _used(outputs)
        if not (scores >= 0).all() or not (scores <= 1 + _SLACK).all():
            return "scores outside of 0 to 1, or NaN"
        if not np.isfinite(boxes).all() or not (boxes[..., 2:] >= boxes[..., :2]).all():
            return "boxes that end before they begin, or NaN or infinity"
        if not ((classes >= 0) & (classes < len(self.labels)) == used).all() or not (classes[~used] == -1).all():
            return f"classes outside of 0 to {len(self.labels) - 1}, or padding that is not -1"
        if boxes[~used].any() or scores[~used].any():
            return "padding that is not 0"
        return ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles a decoder and the steps after it; boxes below the operating score are evidence."""
        wanted = outputs_read(model.steps, model.output, [spec.name for spec in model.ports])
        names = tuple([model.port(name) for name in wanted])
        detect = compile_detection(model.steps, model.image_size(), self.k)

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            found = detect({name: raw[name] for name in names}, rows[GEOMETRY])
            outputs = {spec.name: found.pop(spec.name) for spec in self.outputs}
            return Prediction(outputs, found)

        return Postprocess(names, run, needs=(GEOMETRY,))

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row, in [0, 1].

        - `minimum_confidence`: the lowest score of a detection; without detections 1 - the best candidate's score.
        - `mean_confidence`: the mean score of the detections; without detections 1 - the best candidate's score.
        - `no_candidate`: 1 - the best candidate's score: whether an object was missed.
        - `product`: the detections' scores times 1 - each candidate's score: as if all decisions were independent.

        A row with neither detections nor candidates has the score 0: a model that returns nothing says nothing about
        its confidence. Models without suppression inside always have a candidate.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: has `candidate_scores`.
            temperature: without effect, because scores of detectors are not logits.

        Raises:
            InvalidTensorError: the evidence has no candidates.
        """
        scores, count = outputs[SCORES], outputs[COUNT]
        candidates = _candidate_scores(evidence)
        used, best = _used(outputs), candidates.max(axis=1, initial=0)
        if kind == "no_candidate":
            found = 1 - best
        elif kind == "product":
            found = np.where(used, scores, 1).prod(axis=1) * (1 - candidates).prod(axis=1)
        elif kind == "mean_confidence":
            found = np.where(count > 0, scores.sum(axis=1) / np.maximum(count, 1), 1 - best)
        else:
            found = np.where(count > 0, scores.min(axis=1, where=used, initial=1), 1 - best)
        return np.where((count > 0) | (best > 0), found, 0).astype(np.float32)

    def needs_event(self, steps: Sequence[PostStep]) -> bool:
        return True

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count).

        Number of detections, lowest and mean score, best candidate, sum of the candidates, logarithms of both factors
        of the score `product`, logarithm of the smallest side; then, for up to 64 labels, the detected groups.
        """
        scores, count, candidates = outputs[SCORES], outputs[COUNT], _candidate_scores(evidence)
        used = _used(outputs)
        least = scores.min(axis=1, where=used, initial=1)
        mean = scores.sum(axis=1) / np.maximum(count, 1)
        sure = np.log(np.where(used, np.maximum(scores, _SLACK), 1)).sum(axis=1)
        missed = np.log(np.maximum(1 - candidates, _SLACK)).sum(axis=1)
        side = np.where(used, _mean_side(outputs[BOXES]), np.inf).min(axis=1)
        small = np.log1p(np.where(np.isfinite(side), side, 0))
        columns = [count, least, mean, candidates.max(axis=1, initial=0), candidates.sum(axis=1), sure, missed, small]
        if len(self.labels) <= _CLASSES_AT_MOST:
            columns += list((self.occurrences(outputs) > 0).T)
        return np.column_stack(columns).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns 1 - the score `product`."""
        return np.float32(1) - self.score("product", outputs, evidence)

    def groups(self, outputs: Arrays) -> Sequence[str]:
        """Returns the group of each row's best detection; "" without detections."""
        index, names = self._group_index(), self.event_classes
        best = zip(outputs[COUNT].tolist(), outputs[CLASSES][:, 0].tolist(), strict=True)
        return [names[index[label]] if count else "" for count, label in best]

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        """Returns the number of objects of at least `least_side` of each group, (n, groups)."""
        counted = _used(outputs) & (_mean_side(outputs[BOXES]) >= self.least_side)
        return self._by_group(counted, self._group_index()[outputs[CLASSES]])

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns 1 for each row in which any object is missed or invented, else 0: (n,)."""
        objects = self.objects(edge, full)
        wrong: NDArray[np.int64] = (objects.missed + objects.invented).sum(axis=1)
        return (wrong > 0).astype(np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns COCO's mean average precision at an overlap of 0.5, and as the mean of 0.5 to 0.95.

        The candidates count too, because the precision is measured down to low scores.
        """
        rows = range(len(outputs[COUNT]))
        found = average_precision(
            [with_candidates({**outputs, **evidence}, row) for row in rows], [detections(truth, row) for row in rows]
        )
        return {"map50": found.ap50, "map50_95": found.ap50_95}

    def misses(self, edge: Arrays, full: Arrays) -> tuple[Misses, Misses]:
        """Returns the rows that count for "missed" and for "invented", and which of them are lost.

        "missed C" counts rows in which the full model detects the class C, or one of a group C; it is lost if the edge
        model lacks a match for one of these objects. "invented C" counts rows in which the edge model detects C; it is
        lost if the full model lacks a match.
        """
        objects = self.objects(edge, full)
        missed = objects.found + objects.missed > 0, objects.missed > 0
        return missed, (self.occurrences(edge) > 0, objects.invented > 0)

    def objects(self, edge: Arrays, full: Arrays) -> Objects:
        """Returns the objects that the edge model found, missed and invented, relative to the full model or to labels.

        Args:
            edge: canonical outputs.
            full: canonical outputs, or labelled boxes.
        """
        index = self._group_index()
        our_groups, their_groups = index[edge[CLASSES]], index[full[CLASSES]]
        our_sides, their_sides = _mean_side(edge[BOXES]), _mean_side(full[BOXES])
        needed = np.where(their_sides < self.small_side, self.small_iou, self.iou)
        paired, found = np.zeros(our_groups.shape, bool), np.zeros(their_groups.shape, bool)
        for row in np.flatnonzero((edge[COUNT] > 0) & (full[COUNT] > 0)).tolist():
            ours, theirs = slice(edge[COUNT][row]), slice(full[COUNT][row])
            overlap = intersection_over_union(edge[BOXES][row, ours], full[BOXES][row, theirs])
            differ = our_groups[row, ours, None] != their_groups[row, theirs]
            overlap[differ | (overlap < needed[row, theirs])] = 0
            partner = partners(overlap)
            paired[row, ours] = partner >= 0
            found[row, partner[partner >= 0]] = True
        reported = _used(edge) & (our_sides >= self.least_side)
        present = _used(full) & (their_sides >= self.least_side)
        return Objects(
            found=self._by_group(found & present, their_groups),
            missed=self._by_group(~found & present, their_groups),
            invented=self._by_group(~paired & reported, our_groups),
        )

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of a score, or of a box relative to its size; infinite without a partner.

        A detection of one side may be a candidate of the other, because its score is near the operating score.
        """
        return max((_difference(expected, actual, row) for row in range(len(expected[COUNT]))), default=0.0)

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the JSON form of a row for people: its objects, best first, with boxes in pixels."""
        objects = [
            {
                "label": self.labels[label],
                "score": round(score, 4),
                "box": {"x1": round(x1, 1), "y1": round(y1, 1), "x2": round(x2, 1), "y2": round(y2, 1)},
            }
            for (x1, y1, x2, y2), score, label in _listed(self.seen(outputs, row, view))
        ]
        return {"count": len(objects), "objects": objects}

    def seen(self, outputs: Arrays, row: int, view: View) -> Boxes:
        """Returns the detections of a row that a view shows, best first."""
        found = detections(outputs, row)
        shown = found.scores >= view.min_score
        if view.classes:
            shown &= np.isin(found.classes, [self.labels.index(label) for label in view.classes])
        return found.take(np.flatnonzero(shown)[: view.max_objects])

    def draw(self, image: Image.Image, outputs: Arrays, row: int, view: View = WHOLE) -> Image.Image:
        """Returns a copy of the upright image with the row's boxes, labels and scores."""
        from PIL import ImageDraw  # Pillow takes 3 MB: import it only for images

        drawn = image.convert("RGB")
        scale = image.width / view.size(row).get("width", image.width)
        canvas = ImageDraw.Draw(drawn)
        for box, score, label in _listed(self.seen(outputs, row, view)):
            colour = COLOURS[label % len(COLOURS)]
            left, top, right, bottom = (side * scale for side in box)
            canvas.rectangle((left, top, right, bottom), outline=colour, width=line_width(drawn))
            write(drawn, (left, top), f"{self.labels[label]} {score:.2f}", colour)
        return drawn

    def _groups_of_labels(self) -> list[str]:
        group_of = {label: name for name, labels in self.class_groups.items() for label in labels}
        return [group_of.get(label, label) for label in self.labels]

    def _by_group(self, counted: NDArray[np.bool_], groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of counted boxes of each group, (n, groups), for (n, k) boxes and their groups."""
        found = np.zeros((len(counted), len(self.event_classes)), np.int64)
        rows, columns = np.nonzero(counted)
        np.add.at(found, (rows, groups[rows, columns]), 1)
        return found

    def _group_index(self) -> NDArray[np.int64]:
        """Returns the number of each label's group."""
        return numbered(self._groups_of_labels())


def _used(outputs: Arrays) -> NDArray[np.bool_]:
    """Returns which boxes are detections and not padding, (n, k)."""
    scores: Scores = outputs[SCORES]
    used: NDArray[np.bool_] = np.arange(scores.shape[1]) < outputs[COUNT][:, None]
    return used


def detections(outputs: Arrays, row: int) -> Boxes:
    """Returns the detections of a row, best first."""
    count = int(outputs[COUNT][row])
    return Boxes(outputs[BOXES][row, :count], outputs[SCORES][row, :count], outputs[CLASSES][row, :count])


def with_candidates(outputs: Arrays, row: int) -> Boxes:
    """Returns the detections of a row, then its candidates if there are any."""
    found = detections(outputs, row)
    if CANDIDATE + SCORES not in outputs:
        return found
    count = int(np.count_nonzero(outputs[CANDIDATE + CLASSES][row] >= 0))
    more = Boxes(*(outputs[CANDIDATE + name][row, :count] for name in (BOXES, SCORES, CLASSES)))
    return Boxes(
        np.concatenate((found.boxes, more.boxes)),
        np.concatenate((found.scores, more.scores)),
        np.concatenate((found.classes, more.classes)),
    )


def _listed(boxes: Boxes) -> Iterable[tuple[list[float], float, int]]:
    """Returns the box, score and class of each."""
    return zip(boxes.boxes.tolist(), boxes.scores.tolist(), boxes.classes.tolist(), strict=True)


def _candidate_scores(evidence: Arrays) -> Scores:
    scores = evidence.get(CANDIDATE + SCORES)
    if scores is None:
        raise InvalidTensorError("The scores of detectors need candidates; these outputs come without.")
    return scores


def _difference(expected: Arrays, actual: Arrays, row: int) -> float:
    """Returns the largest difference of a row's detections, see `Detection.distance`."""
    worst = 0.0
    for some, others in ((expected, actual), (actual, expected)):
        ours, theirs = detections(some, row), with_candidates(others, row)
        overlap = intersection_over_union(ours.boxes, theirs.boxes)
        overlap[ours.classes[:, None] != theirs.classes] = 0
        partner = partners(overlap)
        if (partner < 0).any():
            return float("inf")
        pairs = theirs.take(partner)
        moved = np.abs(ours.boxes - pairs.boxes).max(axis=1) / np.maximum(_mean_side(ours.boxes), 1)
        worst = max(worst, float(np.maximum(moved, np.abs(ours.scores - pairs.scores)).max(initial=0)))
    return worst


def _mean_side(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the geometric mean of the width and height of each box, in pixels."""
    found: NDArray[np.float32] = np.sqrt(np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1))
    return found
