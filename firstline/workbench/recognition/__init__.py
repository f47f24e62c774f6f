"""Recognises what a model file computes, from its ports, operators, metadata and one trial run. Pure.

reading       a way to feed a model and to read its outputs, and the properties that the file leaves open
inputs        the input side of a model
outputs       an output in one trial run
detectors     families of detectors
answers       families of other models

A family's convention comes first among the values of an open property, and data may decide.
"""

from __future__ import annotations

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition import answers, detectors
from firstline.workbench.recognition.inputs import start_of
from firstline.workbench.recognition.outputs import Output
from firstline.workbench.recognition.reading import Reading, Surroundings
from firstline_core.types import Arrays

FAMILIES_OF_IMAGES = (
    detectors.ssd,
    detectors.detr,
    detectors.anchors,
    detectors.fastestdet,
    detectors.box_rows,
    detectors.yolo,
    answers.segmentation,
)
"""Families whose models take images. Each function yields its readings of a model, none for one of another family."""

FAMILIES_OF_ANY_INPUT = (answers.classifier, answers.binary, answers.regression, answers.anomaly)
"""Families whose models take whatever the data hold."""


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
    families = FAMILIES_OF_ANY_INPUT if start.inputs.size is None else (*FAMILIES_OF_IMAGES, *FAMILIES_OF_ANY_INPUT)
    found = [reading for family in families for reading in family(file, start, outputs)]
    return sorted(found, key=lambda reading: -reading.sure)
