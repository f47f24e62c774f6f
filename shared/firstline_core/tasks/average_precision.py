"""COCO's average precision of a detector, computed by pycocotools: `firstline[analysis]`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from firstline_core.errors import ConfigError
from firstline_core.processing.boxes import Boxes

MOST_BOXES = 100
"""Boxes of an image that count, the best ones."""


class AveragePrecision(NamedTuple):
    """Mean over the classes that occur in the truth, in [0, 1].

    Attributes:
        ap50: at an intersection over union of 0.5.
        ap50_95: mean over 0.5, 0.55, ... 0.95.
    """

    ap50: float
    ap50_95: float


def average_precision(found: Sequence[Boxes], truth: Sequence[Boxes]) -> AveragePrecision:
    """Returns the average precision of detections.

    Args:
        found: of each image, down to a low score.
        truth: of each image; scores are ignored.

    Raises:
        ConfigError: pycocotools is not installed, or the truth has no boxes.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise ConfigError("pycocotools computes average precision: pip install 'firstline[analysis]'.") from error
    categories = sorted({int(label) for boxes in truth for label in boxes.classes})
    if not categories:
        raise ConfigError("The average precision needs images with labelled boxes; the data has none.")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        truths, detections = COCO(), COCO()
        for dataset, images in ((truths, truth), (detections, found)):
            dataset.dataset = {
                "images": [{"id": number} for number in range(len(truth))],
                "categories": [{"id": label} for label in categories],
                "annotations": _annotations(images),
            }
            dataset.createIndex()
        evaluation = COCOeval(truths, detections, "bbox")
        evaluation.params.maxDets = [MOST_BOXES]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = evaluation.params.areaRng[:1], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, 0]  # overlaps, recalls, classes
    return AveragePrecision(float(precision[0].mean()), float(precision.mean()))


def _annotations(images: Sequence[Boxes]) -> list[dict[str, Any]]:
    """Returns the boxes in COCO's form. Ids start at 1, because the evaluation takes 0 for "no match"."""
    annotations: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        for (left, top, right, bottom), score, label in zip(*(values.tolist() for values in image), strict=True):
            width, height = right - left, bottom - top
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": label,
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "score": score,
                }
            )
    return annotations
