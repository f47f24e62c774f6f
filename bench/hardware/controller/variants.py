"""The three CIFAR-10 variants: their answers to real images, and what their certificates accept.

Half of the images certify. The other half arrives at the simulated device, where each row is one image with the real
answer of each variant.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.hardware.controller.scenario import DELTA, EPSILON, VARIANTS, Scenario, Variant
from bench.pools import CACHE, CIFAR10, DATA
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
_RECIPE = Path(__file__).parents[3] / "models" / CIFAR10.recipe / "recipe.toml"
_IMAGES = 2500
_SEED = 20261123


def variants(scenario: Scenario) -> list[Variant]:
    """Runs the three variants on real images, and returns them at the speed of the scenario's board."""
    manifest = (bundle := _bundle()).manifest
    dataset = open_dataset(DATA / CIFAR10.images / "dev", _IMAGES)
    seen = observe_here(bundle, manifest.models, dataset, RuntimeOptions(threads=1)).answers
    answers = {one.model.id: one for one in seen}
    order = np.random.default_rng(_SEED).permutation(len(dataset))
    calibration, arriving = np.array_split(order, 2)
    found = []
    for name, row_ms in zip(VARIANTS, scenario.row_ms, strict=True):
        scores = score("margin", answers[name].probabilities).astype(np.float64)
        disagrees = answers[name].labels != seen[-1].labels  # the full model is the last
        threshold = certify(scores[calibration], disagrees[calibration], EPSILON, DELTA).threshold
        keeps = scores >= (np.inf if threshold is None else threshold)
        found.append(Variant(name, row_ms, float(keeps[calibration].mean()), keeps[arriving], disagrees[arriving]))
    return found


def _bundle() -> Bundle:
    """Returns the CIFAR-10 bundle with one more edge variant from the same folder."""
    folder = CACHE / "cifar10-variants"
    if folder.is_dir():
        return open_bundle(folder)
    data = DATA / CIFAR10.recipe
    spec = read_recipe(_RECIPE, data)
    deeper = ModelSpec(
        data / "models" / "resnet20_cifar10.onnx",
        id="resnet20",
        preprocess=parse_preprocess(_CIFAR_STEPS),
        postprocess=parse_postprocess("softmax"),
    )
    return create_bundle(replace(spec, edge=(*spec.edge, deeper)), folder)
