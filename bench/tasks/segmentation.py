"""Segmentation on `pascal-segmentation-cascade`: mean intersection over union, and how the scores order the images."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.figures import Figure, near, plain
from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.masks import mask_file, read_mask
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import Prediction
from firstline_core.tasks.segmentation import MASK, Segmentation
from firstline_core.types import Arrays, join_rows

MIOU = {"half": 0.508, "whole": 0.590}
"""Mean over the images of their mean intersection over union, which the data's README states, by model."""

AGREEMENT = 0.608
"""The same of the edge model relative to the full model."""

_WITHIN = 0.005
_RECIPE = Path(__file__).parents[2] / "models" / "pascal-segmentation-cascade" / "recipe.toml"


def figures(data: Path) -> Iterator[Figure]:
    """Yields the quality of both models, their agreement, and the agreement of the half that a score prefers."""
    with TemporaryDirectory() as folder:
        bundle = create_bundle(read_recipe(_RECIPE, data), Path(folder) / "bundle")
        answers = {name: run(bundle, name, data) for name in MIOU}
    task = bundle.manifest.task
    assert isinstance(task, Segmentation)
    truth = labelled_masks(task, data)
    for name, reference in MIOU.items():
        found = task.summary(answers[name].outputs, answers[name].evidence, truth)
        yield near(f"{name}: mean intersection over union", found["miou"], reference, _WITHIN)
        yield plain(f"{name}: mean intersection over union, pooled over all pixels", found["miou_pooled"], "share", 4)
    edge, full = (answers[name] for name in MIOU)
    agreement = 1 - task.loss(edge.outputs, full.outputs)
    yield near("half: mean intersection over union with the full model", float(agreement.mean()), AGREEMENT, _WITHIN)
    for kind in task.score_kinds:
        order = np.argsort(-task.score(kind, edge.outputs, edge.evidence), kind="stable")
        best = float(agreement[order[: len(order) // 2]].mean())
        yield plain(f"half: the same for the half of the images with the highest {kind}", best, "share", 4)


def images(data: Path) -> list[Path]:
    """Returns the images of `dev`, which belong to another pair."""
    with (data / "dev" / "images.csv").open() as lines:
        return [data.parent / "coco-cascade" / "dev" / "images" / row["file"] for row in csv.DictReader(lines)]


def labelled_masks(task: Segmentation, data: Path) -> Arrays:
    """Returns the labelled masks of `dev` in the frame of the task."""
    files = [mask_file(data / "dev" / "masks", image.name) for image in images(data)]
    return {MASK: np.stack([read_mask(file, (task.width, task.height), len(task.labels)) for file in files])}


def run(bundle: Bundle, name: str, data: Path) -> Prediction:
    """Returns the answers of a model of the recipe to the images of `dev`."""
    model = next(each for each in bundle.manifest.models if each.id == name)
    with closing(load_model(bundle, model, RuntimeOptions(threads=2))) as loaded:
        found = [loaded.predict({"image": np.array([file.read_bytes()], object)}) for file in images(data)]
    evidence = join_rows([each.evidence for each in found]) if found[0].evidence else {}
    return Prediction(join_rows([each.outputs for each in found]), evidence)
