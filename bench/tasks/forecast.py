"""Forecasts on `nab-forecast-cascade`: the error of each model in units of its window's deviation."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure, plain
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import PolicySpec, read_recipe
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.processing.steps import Unstandardize
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import Prediction, Task
from firstline_core.tasks.regression import VALUES
from firstline_core.types import Arrays, join_rows

ERRORS = {"ar": 0.693, "spread": 0.673, "full": 0.585}
"""Mean absolute error in units of the window's deviation, at most 5, which the data's README states, by model."""

_WITHIN = 0.01
_WINDOW = 48
_RECIPE = Path(__file__).parents[2] / "models" / "nab-forecast-cascade" / "recipe.toml"


def figures(data: Path) -> Iterator[Figure]:
    """Yields the error of each model, and how the edge models agree with the full one."""
    series = [windows(file) for file in sorted((data / "dev" / "series").iterdir())]
    with TemporaryDirectory() as folder:
        bundles = recipe_bundles(data, Path(folder))
        answers = {name: run(bundle, name, [rows for rows, _ in series]) for name, bundle in bundles.items()}
    task = bundles["full"].manifest.task
    for name, reference in ERRORS.items():
        found = error(task, answers[name], [target for _, target in series])
        aim = f"{reference:g}, within {_WITHIN:.0%}"
        holds = abs(found - reference) <= _WITHIN * reference
        yield plain(f"{name}: mean absolute error", found, "deviations", 4)._replace(aim=aim, holds=holds)
    full = join_rows([each.outputs for each in answers["full"]])
    for name in ("ar", "spread"):
        edge = join_rows([each.outputs for each in answers[name]])
        yield plain(f"{name}: outside of the tolerance of the full model", float(task.loss(edge, full).mean()), "share")


def recipe_bundles(data: Path, folder: Path) -> dict[str, Bundle]:
    """Writes the recipe's bundle, and one of the edge model without a spread, which cannot have the same score.

    Args:
        data: folder of the pair.
        folder: of the bundles.

    Returns:
        The bundle of each model.
    """
    spec = read_recipe(_RECIPE, data)
    plain_edge = replace(spec.edge[0], id="ar", file=data / "models" / "nab_ar.onnx", output="")
    without = replace(
        spec,
        edge=(replace(plain_edge, postprocess=(Unstandardize(),)),),
        policy=PolicySpec("small_values", threshold=0.5),
    )
    both = create_bundle(spec, folder / "both")
    return {"ar": create_bundle(without, folder / "ar"), "spread": both, "full": both}


def windows(file: Path) -> tuple[NDArray[np.float64], Arrays]:
    """Returns all windows of a series, FP64 (n, 48), and the values that follow them."""
    with file.open() as lines:
        values = np.array([float(row["value"]) for row in csv.DictReader(lines)])
    rows = np.lib.stride_tricks.sliding_window_view(values, _WINDOW + 1)
    return np.ascontiguousarray(rows[:, :_WINDOW]), {VALUES: rows[:, _WINDOW:].astype(np.float32)}


def run(bundle: Bundle, name: str, series: list[NDArray[np.float64]]) -> list[Prediction]:
    """Returns the answers of a model to each series."""
    model = next(each for each in bundle.manifest.models if each.id == name)
    with closing(load_model(bundle, model, RuntimeOptions(threads=2))) as loaded:
        return [loaded.predict({"window": rows}) for rows in series]


def error(task: Task, answers: list[Prediction], targets: list[Arrays]) -> float:
    """Returns the mean of the series' errors."""
    found = [
        task.summary(each.outputs, each.evidence, target)["mae"] for each, target in zip(answers, targets, strict=True)
    ]
    return float(np.mean(found))
