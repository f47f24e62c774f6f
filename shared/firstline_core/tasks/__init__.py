"""Tasks: the outputs of models, and how they are scored and compared. One module of pure functions per task.

Modules
    base                the functions of every task
    classification      one probability per label
    detection           boxes with classes and scores
    average_precision   COCO's precision of detections
    drawing             text on pictures of answers
"""

from __future__ import annotations

from typing import Any

from firstline_core.tasks.classification import Classification, labelled
from firstline_core.tasks.detection import Detection
from firstline_core.types import DATATYPES, PROBABILITIES, Arrays

AnyTask = Classification | Detection
"""The task of a manifest, told apart by its `kind`."""


def describe(task: AnyTask | None, outputs: Arrays) -> list[dict[str, Any]] | None:
    """Returns the answer to each row for people, as JSON values.

    Args:
        task: of the model; None if it is unknown. Probabilities are then described by the numbers of the classes.
        outputs: of the answer.

    Returns:
        None if these are not outputs of the task: other names or axes, or a caller's form such as labels in place of
        numbers.
    """
    if task is None:
        found = outputs.get(PROBABILITIES)
        if found is None or found.dtype.kind != "f" or found.ndim != 2 or not found.size:
            return None
        return [labelled(row, ()) for row in found]
    for spec in task.outputs:
        found = outputs.get(spec.name)
        if found is None or found.dtype != DATATYPES[spec.datatype] or found.ndim != len(spec.shape):
            return None
    return [task.describe(outputs, row) for row in range(len(outputs[task.outputs[0].name]))]
