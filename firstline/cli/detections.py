"""`firstline detections`: converts two detectors' results to a table for `firstline certify --scores`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firstline.workbench.detections import compare


class BoxScore(StrEnum):
    """A detector's confidence for an image."""

    MINIMUM = "minimum"  # as of the least sure box
    MEAN = "mean"  # as of all boxes on average


def detections_command(
    edge: Annotated[
        Path, typer.Argument(metavar="EDGE.json", help="Boxes of the edge model, in COCO's result format.")
    ],
    full: Annotated[Path, typer.Argument(metavar="FULL.json", help="Boxes of the full model on the same images.")],
    *,
    images: Annotated[Path, typer.Option(help="COCO annotation file that lists every image, including empty ones.")],
    overlap: Annotated[float, typer.Option(help="Least intersection over union of two matching boxes.")] = 0.5,
    least: Annotated[float, typer.Option(help="Least confidence of a box, for both models.")] = 0.5,
    score: Annotated[BoxScore, typer.Option(help="How to combine the boxes' confidences.")] = BoxScore.MINIMUM,
) -> None:
    """Compare the boxes of two detectors, and print score,agree for each image: a table for certify --scores.

    An image agrees when each box has a partner of its class in the other model's; --overlap and --least belong to
    what is promised. The result is a threshold for detectors that you run, not for a bundle of detectors.
    """
    rows = list(compare(edge, full, images, overlap=overlap, least=least, mean=score is BoxScore.MEAN))
    typer.echo("\n".join(["score,agree", *(f"{row.score:.9g},{row.agree}" for row in rows)]))
