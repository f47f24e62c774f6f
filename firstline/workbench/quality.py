"""The quality of a bundle's models, measured on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Progress, observe
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.arrays import some_labelled
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.types import Arrays, Sha256

_SHUFFLES = 9
_FIRST_ROWS = 200  # random ones, enough if the answers surely fit; ten losses of 1,000 large masks take 40 s
_SURELY_FITS = 0.5  # share of the loss by chance; of a loss of 1 if every order of the answers loses the same


def require_fitting_labels(task: Task, outputs: Arrays, truth: Arrays) -> None:
    """Refuses labels that a model meets no better than by chance, such as labels in another order.

    By chance is what the same answers lose if they are shuffled among the rows. If that is the same in any order, as
    for one label of all rows, the answers have to be right more often than not.

    Args:
        task: of the model.
        outputs: the full model's, or the only model's.
        truth: of the same rows.

    Raises:
        ConfigError: the answers lose no less in their own order than in others, or more than half where any order is
            the same.
    """
    if not task.judges_rows:
        return
    random = np.random.default_rng(0)
    rows = random.permutation(np.flatnonzero(task.labelled(truth)))
    if len(rows) > _FIRST_ROWS:
        own, shuffled = _mean_losses(task, outputs, truth, rows[:_FIRST_ROWS], random)
        if own < min(shuffled) and own <= _SURELY_FITS * np.mean(shuffled):
            return
    own, shuffled = _mean_losses(task, outputs, truth, rows, random)
    by_chance, in_any_order = float(np.mean(shuffled)), max(shuffled) == min(shuffled)
    if own < min(shuffled) or own <= _SURELY_FITS * (1 if in_any_order else by_chance):
        return
    raise ConfigError(
        f"The full model's answers meet the data's labels no better than by chance: their mean loss is {own:.2g}, and "
        f"{by_chance:.2g} if they are shuffled. Labels in another order, or of other rows, prove nothing: compare the "
        "order of the bundle's labels with the data's, or use no labels."
    )


def _mean_losses(
    task: Task, outputs: Arrays, truth: Arrays, rows: NDArray[np.intp], random: np.random.Generator
) -> tuple[float, list[float]]:
    """Returns the mean loss of some rows' answers against their labels, and those of the answers in random orders."""
    labels = {name: array[rows] for name, array in truth.items()}
    orders = [rows, *(rows[_other_order(random, len(rows))] for _ in range(_SHUFFLES))]
    losses = [task.truth_loss({name: array[order] for name, array in outputs.items()}, labels) for order in orders]
    own, *shuffled = (float(loss.mean(dtype=np.float64)) if loss.size else 0.0 for loss in losses)
    return own, shuffled


def _other_order(random: np.random.Generator, count: int) -> NDArray[np.intp]:
    """Returns a random order of rows in which no row keeps its place, unless it is the only one."""
    rows = random.permutation(count)
    order = np.empty(count, np.intp)
    order[rows] = np.roll(rows, 1)
    return order


def quality(task: Task, outputs: Arrays, evidence: Arrays, truth: Arrays) -> float:
    """Returns one number of a model's answers, higher for a better model: `Task.quality`, such as accuracy.

    Of tasks in which a lower figure is better, such as an error in the unit of the values, it is 1 - the mean of
    `Task.truth_loss` of the labelled rows.

    Raises:
        ConfigError: no row has a label, or a package that computes the figure is not installed.
    """
    if task.higher_is_better:
        return task.summary(outputs, evidence, truth)[task.quality]
    labelled = some_labelled(truth, "The quality")
    return 1 - float(task.truth_loss(outputs, truth)[labelled].mean(dtype=np.float64))


def qualities_on(
    bundle: Bundle, dataset: Dataset, variants: Sequence[str] = (), progress: Progress = lambda done, total: None
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
