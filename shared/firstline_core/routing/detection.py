"""Scores and losses of object detectors, one image at a time.

Both have the form of a classifier's: `certification.certify` takes them, and `firstline certify --scores` takes the
score and one minus the loss in the table that `firstline detections` writes. They are for detectors that an application
runs itself: a bundle of detectors has the scores and the loss of its task (`tasks/detection.py`), and no certificate.
Only boxes from a given confidence on count. That confidence is part of the contract, as is the overlap from which two
boxes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.errors import InvalidTensorError
from firstline_core.processing.boxes import intersection_over_union, partners

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """The boxes that a detector found in one image.

    Attributes:
        corners: (n, 4) left, top, right, bottom in any unit, the same for both models.
        classes: (n,)
        confidences: (n,) in [0, 1].
    """

    corners: Floats
    classes: NDArray[np.int64]
    confidences: Floats

    @classmethod
    def of(cls, corners: ArrayLike, classes: ArrayLike, confidences: ArrayLike) -> Boxes:
        """Creates boxes from array-like arguments.

        Raises:
            InvalidTensorError: not four corners, one class and one confidence each; or a confidence outside of [0, 1].
        """
        sure = np.asarray(confidences, np.float64).reshape(-1)
        placed, named = np.asarray(corners, np.float64).reshape(-1, 4), np.asarray(classes, np.int64).reshape(-1)
        if not len(placed) == len(named) == len(sure):
            raise InvalidTensorError(
                f"There are {len(placed)} boxes, {len(named)} classes and {len(sure)} confidences; give one each."
            )
        if not ((sure >= 0) & (sure <= 1)).all():
            raise InvalidTensorError("The confidence of a box is from 0 to 1.")
        return cls(placed, named, sure)

    def from_confidence(self, least: float) -> Boxes:
        """Returns the boxes from a confidence on, most confident first."""
        order = np.argsort(-self.confidences, kind="stable")
        order = order[self.confidences[order] >= least]
        return Boxes(self.corners[order], self.classes[order], self.confidences[order])


def mean_confidence(boxes: Boxes, least: float) -> float:
    """Returns the mean confidence of the boxes that count, in [0, 1]; without boxes see `nothing_there`."""
    sure = boxes.from_confidence(least).confidences
    return float(sure.mean()) if len(sure) else nothing_there(boxes)


def minimum_confidence(boxes: Boxes, least: float) -> float:
    """Returns the lowest confidence of the boxes that count, in [0, 1]; without boxes see `nothing_there`."""
    sure = boxes.from_confidence(least).confidences
    return float(sure.min()) if len(sure) else nothing_there(boxes)


def nothing_there(boxes: Boxes) -> float:
    """Returns the confidence that an image is empty: one minus the highest confidence of a box, 1 without boxes."""
    return 1.0 - float(boxes.confidences.max(initial=0.0))


def matches(edge: Boxes, full: Boxes, *, overlap: float, least: float) -> tuple[int, int, int]:
    """Pairs boxes of the same class one to one, greedily, as COCO's evaluation does.

    The boxes of the edge model choose in order of confidence: each takes the free box of its class with the largest
    overlap.

    Args:
        edge: the edge model's.
        full: the full model's.
        overlap: intersection over union from which two boxes are the same, such as 0.5.
        least: confidence from which a box counts, on both sides.

    Returns:
        The numbers of pairs, and of boxes of the edge model and of the full model that count.
    """
    ours, theirs = edge.from_confidence(least), full.from_confidence(least)
    overlaps = intersection_over_union(ours.corners, theirs.corners)
    overlaps[(ours.classes[:, None] != theirs.classes) | (overlaps < overlap)] = 0
    pairs = int(np.count_nonzero(partners(overlaps) >= 0))
    return pairs, len(ours.classes), len(theirs.classes)


def any_unmatched(edge: Boxes, full: Boxes, *, overlap: float, least: float) -> bool:
    """Returns the loss 1 if any box is missed, extra, misplaced or of another class, otherwise 0. See `matches`."""
    pairs, ours, theirs = matches(edge, full, overlap=overlap, least=least)
    return not pairs == ours == theirs


def unmatched_share(edge: Boxes, full: Boxes, *, overlap: float, least: float) -> float:
    """Returns the loss in [0, 1]: the share of both models' boxes without a partner (one minus F1); 0 without boxes.

    It is not binary, so `certify` bounds it by betting. See `matches`.
    """
    pairs, ours, theirs = matches(edge, full, overlap=overlap, least=least)
    return 1.0 - 2.0 * pairs / (ours + theirs) if ours + theirs else 0.0
