"""Trains the digits pair, measures it on scans that nothing was fitted to, and puts it into a bundle.

    python models/digits/recipe.py [--out DIR]

Training, calibration and measurement see three disjoint parts of the data. Every figure is measured by the workbench
on a bundle of the written files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx_files import edge_onnx, full_onnx
from scans import LABELS, Split, load_split, write_dataset
from scipy.special import softmax
from tflite_files import edge_tflite, quantised_int8
from training import fit_edge, fit_full

from firstline.workbench.bundle import create_bundle
from firstline.workbench.calibrate import fit_temperature
from firstline.workbench.dataset import open_dataset
from firstline.workbench.evaluate import ALL_VARIANTS, Evaluation, evaluate
from firstline.workbench.observe import observe
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.spelling import parse_postprocess, parse_preprocess
from firstline_core.bundle.pipeline import load_edge
from firstline_core.bundle.store import Bundle
from firstline_core.routing import confidence
from firstline_core.runtime.select import RuntimeOptions

EDGE_FILES = {
    "edge_onnx": "edge.onnx",
    "edge_tflite_float": "edge.tflite",
    "edge_tflite_int8": "edge_int8.tflite",
}
FULL_FILE = "full.onnx"
# Whatever size a scan has, the models see 8x8 grey pixels in 0..1.
PREPROCESS = "decode:L,resize:8x8,scale:0:255"
POSTPROCESS = "softmax"
BUNDLE_VERSION = 1
SCORE = "max_probability"
# How many of the calibration scans the edge keeps, the surest first. The aim is 70 % at least; the rest is margin.
EDGE_SHARE = 0.8


def write_models(split: Split, folder: Path) -> None:
    """Fits both models on the training part and writes the four files.

    The full model's logits are divided by its temperature in the file, so that its softmax is calibrated as it is.
    The edge model's are not: its temperature belongs to the routing policy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    edge = fit_edge(split.train.pixels, split.train.digits)
    float_tflite = edge_tflite(edge.weights, edge.bias)
    (folder / EDGE_FILES["edge_onnx"]).write_bytes(edge_onnx(edge))
    (folder / EDGE_FILES["edge_tflite_float"]).write_bytes(float_tflite)
    (folder / EDGE_FILES["edge_tflite_int8"]).write_bytes(quantised_int8(float_tflite, split.train.images))

    full = fit_full(split.train.pixels, split.train.digits)
    said = softmax(full.logits(split.calibration.pixels), axis=1)
    temperature = fit_temperature(said, split.calibration.digits)
    (folder / FULL_FILE).write_bytes(full_onnx(full.scaled(1 / temperature)))


def chosen_policy(bundle: Bundle, calibration: Path) -> PolicySpec:
    """One temperature and threshold for the bundle, chosen with its first edge variant.

    The threshold is the score that `EDGE_SHARE` of the calibration scans reach, to 4 decimals, rounded up.
    """
    edge = load_edge(bundle, RuntimeOptions())
    seen = list(observe([edge], bundle.manifest.input, open_dataset(calibration)))
    edge.close()
    said = np.concatenate([observed.answers[0] for observed in seen])
    temperature = fit_temperature(said, np.array([observed.label for observed in seen]))
    scores = confidence.score(SCORE, said, temperature).astype(np.float64)
    return PolicySpec(SCORE, temperature, float(np.ceil(np.quantile(scores, 1 - EDGE_SHARE) * 1e4) / 1e4))


def accuracies(found: Evaluation) -> dict[str, float | int]:
    """Accuracy of each model on the held-out part, and how many scans that is."""
    if found.full is None:
        raise ValueError("the digits have a full model")
    edges = {name: variant.edge for name, variant in zip(EDGE_FILES, found.variants, strict=True)}
    figures = {name: round(model.accuracy, 4) for name, model in {**edges, "full": found.full}.items()}
    return {**figures, "n": found.samples}


def routing(found: Evaluation) -> dict[str, object]:
    """The policy, and what routing by it gives on the held-out part with each variant."""
    heldout = {}
    for name, variant in zip(EDGE_FILES, found.variants, strict=True):
        if (tiered := variant.tiered) is None:
            raise ValueError("the digits have a full model")
        heldout[name] = {
            "edge_share": round(tiered.edge_share, 4),
            "accuracy_tiered": round(tiered.accuracy, 4),
        }
    score, threshold = found.policy.score, found.policy.threshold
    return {"score": score.kind, "temperature": score.temperature, "threshold": threshold, "heldout": heldout}


def write_bundle(artefacts: Path, out: Path, policy: PolicySpec, accuracy: Mapping[str, float] | None = None) -> Bundle:
    """The files as the bundle `digits`; edge variants in order of preference."""

    def model(name: str, file: str, model_id: str) -> ModelSpec:
        return ModelSpec(
            file=artefacts / file,
            id=model_id,
            precision="int8" if "int8" in name else "fp32",
            preprocess=parse_preprocess(PREPROCESS),
            postprocess=parse_postprocess(POSTPROCESS),
            measured={"accuracy": accuracy[name], "n": accuracy["n"]} if accuracy is not None else {},
        )

    spec = BundleSpec(
        name="digits",
        version=BUNDLE_VERSION,
        labels=LABELS,
        edge=tuple(model(name, file, name.replace("_", "-")) for name, file in EDGE_FILES.items()),
        full=model("full", FULL_FILE, "full"),
        policy=policy,
    )
    return create_bundle(spec, out, force=True, warn=print)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write (default: this one)")
    out: Path = parser.parse_args().out

    split = load_split()
    write_models(split, out / "artefacts")
    write_dataset(split.heldout, out / "heldout")
    write_dataset(split.calibration, out / "calibration")
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")

    # Policy and figures are those of the bundle itself, so it is made three times: bare, with its policy, with both.
    with TemporaryDirectory() as scratch:
        bare = write_bundle(out / "artefacts", Path(scratch) / "bare", PolicySpec(SCORE))
        policy = chosen_policy(bare, out / "calibration")
        routed = write_bundle(out / "artefacts", Path(scratch) / "routed", policy)
        found = evaluate(routed, open_dataset(out / "heldout"), variants=[ALL_VARIANTS])
    accuracy = accuracies(found)
    for name, figures in (("accuracy.json", accuracy), ("routing.json", routing(found))):
        text = json.dumps(figures, indent=1)
        (out / name).write_text(text + "\n", encoding="utf-8")
        print(f"{out / name}\n{text}")
    write_bundle(out / "artefacts", out / "bundle", policy, accuracy)


if __name__ == "__main__":
    main()
