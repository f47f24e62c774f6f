"""Labelled pools of real pairs: what edge and full model say of every image, collected once and kept."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle import create_bundle
from firstline.workbench.dataset import open_dataset
from firstline.workbench.observe import observe
from firstline.workbench.recipe import read_recipe
from firstline_core.bundle.pipeline import load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.routing.confidence import Probabilities
from firstline_core.runtime.select import RuntimeOptions

_MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True, slots=True)
class Pool:
    """One edge variant of one pair on all labelled images. Shapes (n, classes) and (n,)."""

    name: str
    edge: Probabilities
    full: Probabilities
    labels: NDArray[np.int64]

    def losses(self) -> dict[str, NDArray[np.bool_]]:
        """The two losses of a kept answer: the full model says something else; and is right, where the edge is not."""
        edge, full = self.edge.argmax(axis=1), self.full.argmax(axis=1)
        return {"disagreement": edge != full, "harm": (edge != self.labels) & (full == self.labels)}


def collect(pair: str, variant: str, data: Path, cache: Path) -> Pool:
    """Runs the pair's models over its dev images, or takes what an earlier run kept.

    Args:
        pair: folder below `data`, and of the recipe below models/.
        variant: id of the edge variant.
        data: third-party models and images.
        cache: folder for what was collected; a changed recipe collects anew.
    """
    recipe = _MODELS / pair / "recipe.toml"
    digest = hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]
    kept = cache / f"{pair}-{variant}-{digest}.npz"
    if not kept.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        edge, full, labels = _observe(recipe, variant, data / pair, cache / f"{pair}-{digest}")
        np.savez(kept, edge=edge, full=full, labels=labels)
    with np.load(kept) as found:
        return Pool(f"{pair} {variant}", found["edge"], found["full"], found["labels"])


def _observe(
    recipe: Path, variant: str, data: Path, folder: Path
) -> tuple[Probabilities, Probabilities, NDArray[np.int64]]:
    bundle = open_bundle(folder) if folder.is_dir() else create_bundle(read_recipe(recipe, data), folder)
    manifest = bundle.manifest
    if manifest.full is None:
        raise ValueError(f"{manifest.name} has no full model to compare with")
    edge = next(model for model in manifest.edge if model.id == variant)
    with ExitStack() as stack:
        models = [load_model(bundle, model, RuntimeOptions(threads=1)) for model in (edge, manifest.full)]
        for model in models:
            stack.callback(model.close)
        seen = list(observe(models, manifest.input, open_dataset(data / "dev")))
    return (
        np.concatenate([one.answers[0] for one in seen]),
        np.concatenate([one.answers[1] for one in seen]),
        np.array([one.label for one in seen]),
    )
