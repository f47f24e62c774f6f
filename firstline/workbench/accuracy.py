"""The accuracy of a bundle's models, counted on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Progress, predict_each
from firstline_core.bundle.loading import LoadedModel, load_model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import LABEL
from firstline_core.types import PROBABILITIES, Sha256


def accuracies_on(
    bundle: Bundle,
    dataset: Dataset,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> dict[Sha256, float]:
    """Returns the share of right answers by `Model.digest`, without the models that do not load here.

    Args:
        bundle: whose models run.
        dataset: labelled images that no model was trained on.
        variants: ids of models; empty for all, the full model included.
        options: how the models run.
        progress: receives the number of processed images and their total.

    Raises:
        ConfigError: the data does not fit the bundle, or no model loads.
        InferenceError: a model failed.
    """
    manifest = bundle.manifest
    truth = dataset.required_truth(manifest.task)[LABEL]
    models: list[LoadedModel] = []
    why = ""
    with ExitStack() as stack:
        for model in manifest.models:
            if variants and model.id not in variants:
                continue
            try:
                models.append(load_model(bundle, model, options))
            except FirstlineError as error:
                why = error.message
                continue
            stack.callback(models[-1].close)
        if not models:
            raise ConfigError(f"No model of {bundle.path} loads here, so that none has an accuracy: {why}")
        right = np.zeros(len(models), np.int64)
        for label, (_, _, predictions) in zip(
            truth, predict_each(models, manifest.inputs, dataset, progress), strict=True
        ):
            right += [int(prediction.outputs[PROBABILITIES].argmax()) == label for prediction, _ in predictions]
    return {model.digest: count / len(dataset) for model, count in zip(models, right.tolist(), strict=True)}
