"""Trains the digits pair, writes its files, and measures them on scans that nothing was fitted to.

    python models/digits/recipe.py [--out DIR]

Training, calibration and measurement see three disjoint parts of the data. Every figure is measured on the
written files, through the runtimes that run them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from onnx_files import edge_onnx, full_onnx
from routing import accuracy_of, choose_threshold, confidence, fit_temperature, tiered
from run_files import logits_of
from scans import LABELS, Split, load_split, write_dataset
from tflite_files import edge_tflite, quantised_int8
from training import fit_edge, fit_full

EDGE_FILES = {
    "edge_onnx": "edge.onnx",
    "edge_tflite_float": "edge.tflite",
    "edge_tflite_int8": "edge_int8.tflite",
}
FULL_FILE = "full.onnx"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write (default: this one)")
    out: Path = parser.parse_args().out

    split = load_split()
    write_models(split, out / "artefacts")
    write_dataset(split.heldout, out / "heldout")
    write_dataset(split.calibration, out / "calibration")
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")
    for name, figures in (
        ("accuracy.json", measured_accuracy(split, out / "artefacts")),
        ("routing.json", chosen_routing(split, out / "artefacts")),
    ):
        text = json.dumps(figures, indent=1)
        (out / name).write_text(text + "\n", encoding="utf-8")
        print(f"{out / name}\n{text}")


if __name__ == "__main__":
    main()
