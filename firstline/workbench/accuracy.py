"""Accuracy of each model on labelled images; latency and energy are drawn against it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from firstline.workbench.dataset import Dataset
from firstline.workbench.measure import Progress
from firstline.workbench.observe import observe
from firstline_core.bundle.loading import LoadedModel, load_model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Sha256


def accuracies_on(
    bundle: Bundle,
    dataset: Dataset,
    variants: Sequence[str] = (),
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> dict[Sha256, float]:
    """Shares of right answers by `Model.digest`; without the models that do not load here.

    Args:
        bundle: whose models run.
        dataset: labelled images that no model was trained on.
        variants: ids of models; none for all, the full model among them.
        options: how the models run.
        progress: told how many images are done, of how many.

    Raises:
        ConfigError: data that does not fit the bundle, or no model loads.
    """
    manifest = bundle.manifest
    dataset.check_labels(manifest.labels)
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
        for done, seen in enumerate(observe(models, manifest.input, dataset), 1):
            right += [int(rows.argmax()) == seen.label for rows in seen.answers]
            progress(done, len(dataset))
    return {
        loaded.model.digest: float(count) / len(dataset) for loaded, count in zip(models, right.tolist(), strict=True)
    }
