"""The quality of a bundle's models, measured on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Progress, observe
from firstline_core.bundle.loading import LoadedModel, load_model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.arrays import some_labelled
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.types import Arrays, Sha256


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


def qualities_on(
    bundle: Bundle,
    dataset: Dataset,
    variants: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> dict[Sha256, float]:
    """Returns the quality by `Model.digest`, without the models that do not load here.

    Args:
        bundle: whose models run.
        dataset: labelled rows that no model was trained on.
        variants: ids of models; empty for all, the full model included.
        progress: receives the number of processed rows and their total.

    Raises:
        ConfigError: the data does not fit the bundle, or no model loads.
        InferenceError: a model failed.
    """
    manifest = bundle.manifest
    truth = dataset.required_truth(manifest.task, manifest.inputs)
    models: list[LoadedModel] = []
    why = ""
    with ExitStack() as stack:
        for model in manifest.models:
            if variants and model.id not in variants:
                continue
            try:
                models.append(load_model(bundle, model, RuntimeOptions()))
            except FirstlineError as error:
                why = error.message
                continue
            stack.callback(models[-1].close)
        if not models:
            raise ConfigError(f"No model of {bundle.path} loads here, so that no quality is measured: {why}")
        with_evidence = () if isinstance(manifest.task, Classification) else models
        observed = observe(models, manifest.inputs, dataset, progress, with_evidence=with_evidence)
    return {
        model.digest: quality(manifest.task, answers.outputs, answers.evidence, truth)
        for model, answers in zip(models, observed.answers, strict=True)
    }
