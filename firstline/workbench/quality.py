"""The quality of a bundle's models, measured on a data set."""

from __future__ import annotations

import numpy as np

from firstline_core.tasks.arrays import some_labelled
from firstline_core.tasks.base import Task
from firstline_core.types import Arrays


def quality(task: Task, outputs: Arrays, evidence: Arrays, truth: Arrays) -> float:
    """Returns one number of a model's answers, higher for a better model: `Task.quality`, such as accuracy.

    Of tasks in which a lower figure is better, such as an error in the unit of the values, it is 1 - the mean of
    `Task.truth_loss` of the labelled rows.

    Raises:
        ConfigError: no row has a label, or a package that computes the figure is not installed.
    """
    if task.higher_is_better:
        return task.summary(outputs, evidence, truth)[task.quality]
    known = some_labelled(truth, "The quality")
    return 1 - float(task.truth_loss(outputs, truth)[known].mean(dtype=np.float64))
