"""Trains the digits pair, measures it on scans that nothing was fitted to, and puts it into a bundle.

    python models/digits/recipe.py [--out DIR]

Training, calibration and measurement see three disjoint parts of the data. Every figure is measured on the
written files, through the runtimes that run them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_files import edge_onnx, full_onnx
from routing import accuracy_of, choose_threshold, confidence, fit_temperature, tiered
from run_files import logits_of
from scans import LABELS, Split, load_split, write_dataset
from tflite_files import edge_tflite, quantised_int8
from training import fit_edge, fit_full

from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.spelling import parse_postprocess, parse_preprocess

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
    temperature = fit_temperature(full.logits(split.calibration.pixels), split.calibration.digits)
    (folder / FULL_FILE).write_bytes(full_onnx(full.scaled(1 / temperature)))


def measured_accuracy(split: Split, folder: Path) -> dict[str, float | int]:
    """Accuracy of each file on the held-out part, and how many scans that is."""
    figures: dict[str, float | int] = {}
    for name, file in {**EDGE_FILES, "full": FULL_FILE}.items():
        answers = logits_of(folder / file, split.heldout.images).argmax(axis=1)
        figures[name] = round(accuracy_of(answers, split.heldout.digits), 4)
    return {**figures, "n": len(split.heldout.digits)}


def chosen_routing(split: Split, folder: Path) -> dict[str, object]:
    """One temperature and threshold for the bundle, chosen with the ONNX variant, measured with every variant."""
    edge = logits_of(folder / EDGE_FILES["edge_onnx"], split.calibration.images)
    temperature = fit_temperature(edge, split.calibration.digits)
    threshold = choose_threshold(confidence(edge, temperature))
    full = logits_of(folder / FULL_FILE, split.heldout.images)
    heldout = {}
    for name, file in EDGE_FILES.items():
        edge = logits_of(folder / file, split.heldout.images)
        share, accuracy = tiered(edge, full, split.heldout.digits, temperature, threshold)
        heldout[name] = {"edge_share": round(share, 4), "accuracy_tiered": round(accuracy, 4)}
    return {
        "score": "max_probability",
        "temperature": temperature,
        "threshold": threshold,
        "heldout": heldout,
    }


def write_bundle(out: Path, accuracy: Mapping[str, float], routing: Mapping[str, Any]) -> None:
    """The files of `out` as the bundle `digits`; edge variants in order of preference."""

    def model(name: str, file: str, model_id: str) -> ModelSpec:
        return ModelSpec(
            file=out / "artefacts" / file,
            id=model_id,
            precision="int8" if "int8" in name else "fp32",
            preprocess=parse_preprocess(PREPROCESS),
            postprocess=parse_postprocess(POSTPROCESS),
            measured={"accuracy": accuracy[name], "n": accuracy["n"]},
        )

    spec = BundleSpec(
        name="digits",
        version=BUNDLE_VERSION,
        labels=LABELS,
        edge=tuple(model(name, file, name.replace("_", "-")) for name, file in EDGE_FILES.items()),
        full=model("full", FULL_FILE, "full"),
        policy=PolicySpec(score=routing["score"], temperature=routing["temperature"], threshold=routing["threshold"]),
    )
    create_bundle(spec, out / "bundle", force=True, warn=print)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write (default: this one)")
    out: Path = parser.parse_args().out

    split = load_split()
    write_models(split, out / "artefacts")
    write_dataset(split.heldout, out / "heldout")
    write_dataset(split.calibration, out / "calibration")
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")
    accuracy, routing = measured_accuracy(split, out / "artefacts"), chosen_routing(split, out / "artefacts")
    for name, figures in (("accuracy.json", accuracy), ("routing.json", routing)):
        text = json.dumps(figures, indent=1)
        (out / name).write_text(text + "\n", encoding="utf-8")
        print(f"{out / name}\n{text}")
    write_bundle(out, accuracy, routing)


if __name__ == "__main__":
    main()
