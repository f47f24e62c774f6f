"""The three CIFAR-10 variants: their answers to real images, and what their certificates accept.

Half of the images certify. The other half arrives at the simulated device, where each row is one image with the real
answer of each variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.hardware.controller.scenario import DELTA, EPSILON, VARIANTS, Scenario, Variant
from bench.pools import CACHE, CIFAR10, DATA, Pair
from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.observe import observe_here
from firstline.workbench.spec import ModelSpec, read_recipe
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.routing.certification import certify
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import score

_CIFAR_STEPS = "decode:RGB,resize:32x32,scale:0:255,scale:0.485/0.456/0.406:0.229/0.224/0.225,layout:NCHW"
_RECIPES = Path(__file__).parents[3] / "models"


class Rows(msgspec.Struct, frozen=True):
    """The answers of one variant to all rows: its scores, and whether the full model differs."""

    scores: NDArray[np.float64]
    losses: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> Rows:
        return Rows(self.scores[rows], self.losses[rows])

    def threshold(self, epsilon: float, delta: float) -> float:
        """Returns the loosest certified threshold; infinity if there is none."""
        if not len(self.scores):
            return np.inf
        found = certify(self.scores, self.losses, epsilon, delta)
        return found.threshold if found.threshold is not None else np.inf


def observed(bundle: Bundle, pair: Pair, data: Path, limit: int) -> dict[str, Rows]:
    """Returns the margins of each model and whether the full model answers differently.

    Args:
        bundle: bundle of the pair's models.
        pair: pair with labelled images.
        data: folder of third-party models and images.
        limit: maximum number of images.
    """
    manifest = bundle.manifest
    if manifest.full is None:
        raise ValueError(f"{manifest.name} has no full model")
    dataset = open_dataset(data / pair.images / "dev", limit)
    seen = observe_here(bundle, (*manifest.edge, manifest.full), dataset, RuntimeOptions(threads=1)).answers
    full = seen[-1].labels
    return {
        one.model.id: Rows(score("margin", one.probabilities).astype(np.float64), one.labels != full) for one in seen
    }


def cifar_variants(data: Path, cache: Path) -> Bundle:
    """Returns the CIFAR-10 bundle with two more edge variants from the same folder."""
    spec = read_recipe(_RECIPES / CIFAR10.recipe / "recipe.toml", data / CIFAR10.recipe)
    models = data / CIFAR10.recipe / "models"
    large = ModelSpec(
        models / "mlperf_resnet_large_int8.tflite",
        id="resnet-large-int8",
        preprocess=parse_preprocess("decode:RGB,resize:32x32,scale:0:1"),
    )
    deeper = ModelSpec(
        models / "resnet20_cifar10.onnx",
        id="resnet20",
        preprocess=parse_preprocess(_CIFAR_STEPS),
        postprocess=parse_postprocess("softmax"),
    )
    folder = cache / "cifar10-exits"
    if folder.is_dir():
        return open_bundle(folder)
    return create_bundle(replace(spec, edge=(*spec.edge, large, deeper)), folder)


_IMAGES = 2500
_SEED = 20261123


def rows_of_variants() -> dict[str, Rows]:
    """Observes all variants once."""
    return observed(cifar_variants(DATA, CACHE), CIFAR10, DATA, _IMAGES)


def variants(answers_by_variant: Mapping[str, Rows], scenario: Scenario) -> list[Variant]:
    """Returns the three variants at the speed of the scenario's board."""
    order = np.random.default_rng(_SEED).permutation(len(answers_by_variant[VARIANTS[0]].scores))
    calibration, arriving = np.array_split(order, 2)
    found = []
    for name, row_ms in zip(VARIANTS, scenario.row_ms, strict=True):
        rows = answers_by_variant[name]
        threshold = rows.take(calibration).threshold(EPSILON, DELTA)
        arrived = rows.take(arriving)
        found.append(
            Variant(
                name,
                row_ms,
                float((rows.take(calibration).scores >= threshold).mean()),
                arrived.scores >= threshold,
                arrived.losses,
            )
        )
    return found
