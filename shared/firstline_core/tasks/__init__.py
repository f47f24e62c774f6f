"""Tasks: the outputs of models, and how they are scored and compared. One module of pure functions per task.

Modules
    base                the functions of every task, with defaults
    arrays              outputs about which nothing but their form is known
    classification      one probability per label
    detection           boxes with classes and scores
    regression          numbers with a tolerance
    segmentation        a class for each pixel
    anomaly             what is not normal
    embedding           vectors, and their neighbours in a gallery
    installed           tasks by kind, those of other packages included
    field               scores and losses in the field, where their failure never fails a request
    tensors             whatever the bundle declares
    text                recognised or transcribed text
    average_precision   COCO's precision of detections
    drawing             text on pictures of answers
    view                the part of an answer that is described
"""

from __future__ import annotations

from typing import Any

from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.arrays import not_finite
from firstline_core.tasks.base import DeclaredOutputs, Task
from firstline_core.tasks.classification import Classification, labelled, probability_fault
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.segmentation import Segmentation
from firstline_core.tasks.tensors import Tensors
from firstline_core.tasks.text import Text
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import DATATYPES, PROBABILITIES, Arrays, Tensor, TensorSpec, row_count

AnyTask = Classification | Detection | Regression | Segmentation | Anomaly | Embedding | Tensors | Text
"""The tasks of this package; `CONTRIBUTING.md` lists the files that a new one touches.

A manifest may also name a task of another package, see `installed.py`.
"""


def like(outputs: Arrays) -> DeclaredOutputs:
    """Returns the declaration of a model whose bundle is gone: its outputs are like an earlier answer of its task.

    Args:
        outputs: canonical outputs of that answer.
    """
    found = outputs.get(PROBABILITIES)
    one_each = found is not None and found.ndim == 2
    tensors = [Tensor(name, array) for name, array in outputs.items() if name == PROBABILITIES or not one_each]
    specs = [TensorSpec(tensor.name, tensor.datatype, (-1, *tensor.shape[1:])) for tensor in tensors]
    return DeclaredOutputs(tuple(specs), probability_fault if one_each else not_finite)


def describe(task: Task | None, outputs: Arrays, view: View = WHOLE) -> list[dict[str, Any]] | None:
    """Returns the answer to each row for people, as JSON values.

    Args:
        task: of the model; None if it is unknown. Probabilities are then described by the numbers of the classes.
        outputs: of the answer.
        view: leaves parts of the answer out.

    Returns:
        Answers that name places in an image begin with its `width` and `height`, if they are known.
        None if these are not outputs of the task: other names or axes, or a caller's form such as labels in place of
        numbers.
    """
    if task is None:
        found = outputs.get(PROBABILITIES)
        if found is None or found.dtype.kind != "f" or found.ndim != 2 or not found.size:
            return None
        return [labelled(row, ()) for row in found]
    if not describes(task, outputs):
        return None
    return [view.size(row) | task.describe(outputs, row, view) for row in range(row_count(outputs))]


def describes(task: Task, outputs: Arrays) -> bool:
    """Returns whether outputs have the names, datatypes and axes of the task."""
    for spec in task.outputs:
        found = outputs.get(spec.name)
        if found is None or found.dtype != DATATYPES[spec.datatype] or found.ndim != len(spec.shape):
            return False
    return True
