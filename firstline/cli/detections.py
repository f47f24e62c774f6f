"""`firstline detections`: two detectors' results to the table that `firstline certify --scores` takes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firstline.workbench.detections import compare


class BoxScore(StrEnum):
    """How sure a detector is of an image."""

    MINIMUM = "minimum"  # as of the least sure box
    MEAN = "mean"  # as of all boxes on average


def detections_command(
    edge: Annotated[Path, typer.Argument(metavar="EDGE.json", help="The edge model's boxes, COCO's results.")],
    full: Annotated[Path, typer.Argument(metavar="FULL.json", help="The full model's, of the same images.")],
    *,
    images: Annotated[
        Path, typer.Option(help="COCO's description of the data: names every image, the empty ones too.")
    ],
    overlap: Annotated[float, typer.Option(help="Intersection over union from which two boxes are the same.")] = 0.5,
    least: Annotated[float, typer.Option(help="Confidence from which a box counts, for both models.")] = 0.5,
    score: Annotated[BoxScore, typer.Option(help="Of the boxes that count.")] = BoxScore.MINIMUM,
) -> None:
    """Compare the boxes of two detectors, and print score,agree for each image: a table for certify --scores.

    An image agrees when each box has a partner of its class in the other model's; --overlap and --least belong to
    what is promised. Bundles hold classifiers only: what comes of it is a threshold for detectors that you run.
    """
    rows = list(compare(edge, full, images, overlap=overlap, least=least, mean=score is BoxScore.MEAN))
    typer.echo("\n".join(["score,agree", *(f"{row.score:.9g},{row.agree}" for row in rows)]))
