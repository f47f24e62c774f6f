"""Trains the digits pair, measures it on scans that nothing was fitted to, and puts it into a bundle.

    python models/digits/recipe.py [--out DIR]

Training, certification and measurement see three disjoint parts of the data. Whatever is chosen is chosen on the first,
so that the second proves something; the third shows whether it is true. Every figure is measured by the workbench on a
bundle of the written files. One training scan of each digit is a golden input: a device answers it as it was answered
here, or does not run the bundle.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx_files import edge_onnx, full_onnx
from scans import LABELS, Part, load_split, write_dataset, write_examples
from scipy.special import softmax
from tflite_files import edge_tflite, quantised_int8
from training import fit_edge, fit_full, full_out_of_fold

from firstline.workbench.bundle import create_bundle
from firstline.workbench.calibrate import fit_temperature
from firstline.workbench.certify import Certification, Terms, certify_bundle, with_certificate
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import ALL_VARIANTS, Evaluation, evaluate
from firstline.workbench.evidence import gather
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.bundle.loading import load_model, load_scorer
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.routing.certification import starts_at
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

# The score is taken as it is, without a temperature, so that no scan chooses it. What is promised is agreement, and an
# answer turns into another where the gap between the two likeliest closes: the margin.
POLICY = PolicySpec("margin", threshold=1.0)
# The strictest round promise that 300 scans can prove: 1.5 % at 90 % takes 153 edge answers without an error, 1 % takes
# 230, three quarters of all. So testing must start where a little more than half of them are kept; since scans that
# trained a model score higher than others, that is where 60 % of the training scans are.
EPSILON, DELTA = 0.015, 0.1
START_SHARE = 0.6


def write_models(train: Part, folder: Path) -> None:
    """Fits both models, on the training part alone, and writes the four files.

    The full model's logits are divided by its temperature in the file, so that its softmax is calibrated as it is. The
    edge model's are not: the margin takes them as they come.
    """
    folder.mkdir(parents=True, exist_ok=True)
    edge = fit_edge(train.pixels, train.digits)
    float_tflite = edge_tflite(edge.weights, edge.bias)
    (folder / EDGE_FILES["edge_onnx"]).write_bytes(edge_onnx(edge))
    (folder / EDGE_FILES["edge_tflite_float"]).write_bytes(float_tflite)
    (folder / EDGE_FILES["edge_tflite_int8"]).write_bytes(quantised_int8(float_tflite, train.images))

    full = fit_full(train.pixels, train.digits)
    probabilities = softmax(full_out_of_fold(train.pixels, train.digits), axis=1)
    temperature = fit_temperature(probabilities, train.digits)
    (folder / FULL_FILE).write_bytes(full_onnx(full.scaled(1 / temperature)))


def certify(bundle: Bundle, calibration: Path, train: Part) -> list[Certification]:
    """What the calibration scans prove of each edge variant, tested from a score on that the training scans name.

    Raises:
        ValueError: they prove nothing of one.
    """
    dataset, proved = open_dataset(calibration), []
    for variant in bundle.manifest.edge:
        starts = starts_at(scores(bundle, variant, train), ((START_SHARE, 1.0),))
        evidence = gather(bundle, dataset, edge=variant.id)
        found = certify_bundle(bundle, evidence, Terms(EPSILON, DELTA, score="bundle"), starts=starts)
        if found.certificate is None:
            raise ValueError(f"{variant.id} is not certified: {found.result.n_needed} more rows are needed at least")
        proved.append(found)
    return proved


def scores(bundle: Bundle, variant: Model, part: Part) -> NDArray[np.floating]:
    """(n,) by the bundle's score, of the variant's answers."""
    model = load_model(bundle, variant, RuntimeOptions())
    prediction = model.predict({bundle.manifest.inputs[0].name: part.pixels[..., None]})
    model.close()
    return load_scorer(bundle, RuntimeOptions())(prediction.outputs, prediction.evidence)


def with_promises(manifest: Manifest, proved: list[Certification]) -> Manifest:
    """The manifest with every variant's certificate; the first one's threshold is what holds where one is void."""
    for found in proved:
        manifest = with_certificate(manifest, found)
    policy = msgspec.structs.replace(manifest.policy, threshold=proved[0].result.threshold)
    return msgspec.structs.replace(manifest, policy=policy)


def accuracies(evaluation: Evaluation) -> dict[str, float | int]:
    """Accuracy of each model on the held-out part, and how many scans that is."""
    if evaluation.full is None:
        raise ValueError("the digits have a full model")
    edges = {name: variant.edge for name, variant in zip(EDGE_FILES, evaluation.variants, strict=True)}
    figures = {name: round(model.quality["accuracy"], 4) for name, model in {**edges, "full": evaluation.full}.items()}
    return {**figures, "n": evaluation.samples}


def routing(evaluation: Evaluation, proved: list[Certification]) -> dict[str, object]:
    """The promise, and what routing by it gives on the held-out part with each variant."""
    variants = {}
    for name, variant, result in zip(EDGE_FILES, evaluation.variants, (each.result for each in proved), strict=True):
        if (tiered := variant.tiered) is None or tiered.disagreement is None or result.risk_upper is None:
            raise ValueError("the digits have a full model, and are certified")
        variants[name] = {
            "threshold": result.threshold,
            "certified_on": result.n,
            "kept": round(result.kept, 4),
            "risk_upper": round(result.risk_upper, 4),
            "heldout": {
                "edge_share": round(tiered.edge_share, 4),
                "disagreement": round(tiered.disagreement, 4),
                "accuracy_tiered": round(tiered.quality["accuracy"], 4),
            },
        }
    score = evaluation.policy.score
    return {
        "score": score.kind,
        "temperature": score.temperature,
        "epsilon": EPSILON,
        "delta": DELTA,
        "variants": variants,
    }


def write_bundle(
    artefacts: Path, out: Path, accuracy: Mapping[str, float] | None = None, golden: Sequence[Path] = ()
) -> Bundle:
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
        policy=POLICY,
    )
    return create_bundle(spec, out, force=True, golden=golden, warn=print)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write (default: this one)")
    out: Path = parser.parse_args().out

    split = load_split()
    write_models(split.train, out / "artefacts")
    write_dataset(split.heldout, out / "heldout")
    write_dataset(split.calibration, out / "calibration")
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")

    # Certificates and figures are those of the bundle itself, so it is made twice: bare, and with both.
    with TemporaryDirectory() as scratch:
        bare = write_bundle(out / "artefacts", Path(scratch) / "bare")
        proved = certify(bare, out / "calibration", split.train)
        routed = Bundle(bare.path, with_promises(bare.manifest, proved))
        found = evaluate(routed, open_dataset(out / "heldout"), variants=[ALL_VARIANTS])
    accuracy = accuracies(found)
    for name, figures in (("accuracy.json", accuracy), ("routing.json", routing(found, proved))):
        text = json.dumps(figures, indent=1)
        (out / name).write_text(text + "\n", encoding="utf-8")
        print(f"{out / name}\n{text}")
    with TemporaryDirectory() as scratch:
        golden = write_examples(split.train, Path(scratch))
        made = write_bundle(out / "artefacts", out / "bundle", accuracy, golden)
    (made.path / MANIFEST_NAME).write_bytes(encode_manifest(with_promises(made.manifest, proved)))
    open_bundle(made.path)


if __name__ == "__main__":
    main()
