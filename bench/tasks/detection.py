"""Detectors on `coco-cascade`: average precision with the declared steps, next to that of the models' own decoding."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec.structs import replace

from bench.figures import Figure, near, plain
from bench.support.bundles import model, write_manifest
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.bundle.store import Bundle
from firstline_core.processing.boxes import COUNT, Boxes
from firstline_core.processing.steps import Suppress
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.average_precision import MOST_BOXES, AveragePrecision, average_precision
from firstline_core.tasks.detection import Detection, detections, with_candidates
from firstline_core.types import Arrays, join_rows

_WITHIN = 0.01
_FULL = "yolox-nano"
_AGREEMENT = {"fastestdet": (0.65, 0.57), "ssd": (0.60, 0.55), "dynamic-range": (0.96, 0.97)}
"""Precision and recall against the full model, which the data's README states."""
_RECIPE = Path(__file__).parents[2] / "models" / "coco-cascade" / "recipe.toml"
_LEAST_SCORE = 0.001  # COCO's curves begin there

AP50 = {"fastestdet": 0.362, "ssd": 0.373, "dynamic-range": 0.53, "yolox-nano": 0.534}
"""Average precision at an overlap of 0.5, which the data's README states, by the recipe's models."""


def figures(data: Path) -> Iterator[Figure]:
    """Yields the average precision of each detector, and how those of the edge differ from the full one.

    The last figures are of a detector that returns nothing: it misses every person, but agrees about every empty frame.
    """
    task = Detection(labels=labels_of(data), small_iou=0.5)
    truth = labelled_boxes(data)
    answers = {name: run(name, data) for name in AP50}
    for name, reference in AP50.items():
        found = precision(answers[name], truth)
        yield near(f"{name}: AP50", found.ap50, reference, _WITHIN)
        yield plain(f"{name}: AP50:95", found.ap50_95, "share", 4)
    full = answers.pop(_FULL)
    answers["nothing"] = {name: np.zeros_like(array) for name, array in full.items()}
    for name, edge in answers.items():
        objects = task.objects(edge, full)
        seen, missed, invented = (int(counts.sum()) for counts in objects)
        for measure, share, reference in zip(
            ("precision", "recall"),
            (seen / max(seen + invented, 1), seen / (seen + missed)),
            _AGREEMENT.get(name, ()),
            strict=False,
        ):
            yield near(f"{name}: {measure} against the full model", share, reference, _WITHIN)
        yield plain(f"{name}: frames that differ", float(task.loss(edge, full).mean()), "share")
        [event] = task.events_of(["missed person"], edge, full).values()
        share = float(event.loss[event.counts].mean())
        yield plain(f"{name}: missed person, of {event.counts.sum()} frames with one", share, "share")


def labels_of(data: Path) -> tuple[str, ...]:
    """Returns the names of the classes."""
    return tuple((data / "labels.txt").read_text().splitlines())


def images(data: Path) -> list[Path]:
    """Returns the images of `dev`, by name."""
    return sorted((data / "dev" / "images").iterdir())


def labelled_boxes(data: Path) -> list[Boxes]:
    """Returns the boxes of each image of `dev`, in the order of `images`."""
    truth = open_dataset(data / "dev").required_truth(Detection(labels=labels_of(data)))
    return [detections(truth, row) for row in range(len(truth[COUNT]))]


def recipe_bundle(name: str, data: Path, folder: Path, **changes: float) -> Bundle:
    """Writes a bundle with one model of the recipe.

    Args:
        name: id of the model.
        data: folder of the pair.
        folder: of the bundle.
        changes: fields of its step `suppress`.
    """
    spec = read_recipe(_RECIPE, data)
    one = next(each for each in spec.models if each.id == name)
    *decoder, last = one.postprocess
    if not isinstance(last, Suppress):
        raise ValueError(f"{_RECIPE}: the last step of {name} is not suppress")
    fields: dict[str, Any] = {"preprocess": one.preprocess, "postprocess": (*decoder, replace(last, **changes))}
    edge = model(Path(shutil.copy(one.file, folder)), folder, **fields)
    return write_manifest(folder, [edge], (), task=spec.task, policy=Policy(Score("product")))


def run(name: str, data: Path, count: int | None = None) -> Arrays:
    """Returns the outputs of a model of the recipe for the first images of `dev`, or all, with candidates."""
    found: list[Arrays] = []
    with TemporaryDirectory() as folder:
        bundle = recipe_bundle(name, data, Path(folder), floor=_LEAST_SCORE, limit=1000)
        with closing(load_model(bundle, bundle.manifest.edge[0], RuntimeOptions(threads=2))) as loaded:
            for file in images(data)[:count]:
                prediction = loaded.predict({"image": np.array([file.read_bytes()], object)})
                found.append({**prediction.outputs, **prediction.evidence})
    return join_rows(found)


def precision(outputs: Arrays, truth: Sequence[Boxes]) -> AveragePrecision:
    """Returns the average precision of detections and candidates together."""
    boxes = [with_candidates(outputs, row).take(slice(MOST_BOXES)) for row in range(len(truth))]
    return average_precision(boxes, truth)
