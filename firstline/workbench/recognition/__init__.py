"""Recognises what a model file computes, from its ports, operators, metadata and one trial run. Pure.

reading       a way to feed a model and to read its outputs, and the properties that the file leaves open
inputs        the input side of a model
outputs       an output in one trial run
detectors     families of detectors
answers       families of other models

A family's convention comes first among the values of an open property, and data may decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition import answers, detectors
from firstline.workbench.recognition.inputs import Start, start_of
from firstline.workbench.recognition.outputs import Output
from firstline.workbench.recognition.reading import Reading, Surroundings
from firstline_core.types import Arrays


class Family(NamedTuple):
    """A family of models.

    Attributes:
        evidence: the form of its outputs.
        read: yields its readings of a model, none for a model of another family.
        images_only: whether its models take images; others take whatever the data hold.
    """

    evidence: str
    read: Callable[[ModelFile, Start, Sequence[Output]], Iterator[Reading]]
    images_only: bool = True


FAMILIES = (
    Family("boxes, classes, scores and perhaps a count, as outputs of their own", detectors.ssd),
    Family("boxes and logits of queries, in two outputs", detectors.detr),
    Family("offsets of SSD's anchors and the scores of their classes, in two outputs", detectors.anchors),
    Family("one grid of 5 + classes channels, 16 pixels a cell", detectors.fastestdet),
    Family("rows of corners, score and class", detectors.box_rows),
    Family("a column of numbers for each box of a grid, or for each query", detectors.yolo),
    Family("a class for each pixel, or scores of the classes", answers.segmentation),
    Family("one number for each class", answers.classifier, images_only=False),
    Family("one number, the probability of the second label", answers.binary, images_only=False),
    Family("one value or a horizon, and perhaps its spread", answers.regression, images_only=False),
    Family("one score for each row, or an output in the shape of the input", answers.anomaly, images_only=False),
)


def recognise(file: ModelFile, raw: Arrays | None = None, near: Surroundings = Surroundings()) -> list[Reading]:  # noqa: B008 (frozen)
    """Returns the possible readings of a model, the surest first; none if the model is of no known family.

    Args:
        file: the model's description.
        raw: its outputs for one image or row, which tell logits from probabilities and pixels from fractions.
        near: properties of the data and of other files.
    """
    start = start_of(file, near)
    if start is None:
        return []
    outputs = [Output.of(spec, None if raw is None else raw.get(spec.name)) for spec in file.outputs]
    families = [family for family in FAMILIES if start.inputs.size is not None or not family.images_only]
    found = [reading for family in families for reading in family.read(file, start, outputs)]
    return sorted(found, key=lambda reading: -reading.sure)
