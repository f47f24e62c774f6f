"""The committed digits pair: what it claims is what it does, and the recipe makes it again."""

import csv
import io
import json
import subprocess
import sys
import zipfile
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from onnx import numpy_helper
from PIL import Image

from firstline_core.bundle.golden import deviation, inputs_of, read_golden
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import valid_certificate
from firstline_core.bundle.store import open_bundle
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import PROBABILITIES

pytestmark = pytest.mark.timeout(330)  # the first caller waits for the recipe

DIGITS = Path(__file__).parents[2] / "models" / "digits"
EDGE = {"edge_onnx": "edge.onnx", "edge_tflite_float": "edge.tflite", "edge_tflite_int8": "edge_int8.tflite"}
FILES = {**EDGE, "full": "full.onnx"}


def figures(name: str, folder: Path = DIGITS) -> dict[str, Any]:
    """The figures that the recipe wrote about the pair."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def logits_of(file: Path, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, 10) logits of (n, 8, 8, 1) images, by the runtime that the file's suffix names."""
    runtime = load_runtime(file, "tflite" if file.suffix == ".tflite" else "onnx", RuntimeOptions())
    try:
        return np.asarray(runtime.run({"image": images})["logits"])
    finally:
        runtime.close()


def softmax(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """In FP64 and by definition: what the product's own arithmetic is compared with."""
    powers = np.exp(logits.astype(np.float64) / temperature)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class Dataset(NamedTuple):
    files: list[str]
    pixels: NDArray[np.uint8]
    digits: NDArray[np.int64]
    names: list[str]

    @property
    def images(self) -> NDArray[np.float32]:
        return self.pixels[..., None].astype(np.float32) / np.float32(255)


def read_dataset(folder: Path) -> Dataset:
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    with zipfile.ZipFile(folder / "images.zip") as archive:
        assert archive.namelist() == [row["file"] for row in rows]
        images = [Image.open(io.BytesIO(archive.read(row["file"]))) for row in rows]
    assert {image.mode for image in images} == {"L"}
    return Dataset(
        [row["file"] for row in rows],
        np.stack([np.asarray(image) for image in images]),
        np.array([int(row["label"]) for row in rows]),
        [row["name"] for row in rows],
    )


@pytest.fixture(scope="module")
def heldout() -> Dataset:
    return read_dataset(DIGITS / "heldout")


@pytest.fixture(scope="module")
def calibration() -> Dataset:
    return read_dataset(DIGITS / "calibration")


@pytest.fixture(scope="module")
def remade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("digits")
    done = subprocess.run(
        [sys.executable, DIGITS / "recipe.py", "--out", out], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return out


def test_parts_are_disjoint_and_labelled(heldout: Dataset, calibration: Dataset) -> None:
    labels = (DIGITS / "labels.txt").read_text(encoding="utf-8").splitlines()
    assert (len(heldout.files), len(calibration.files), len(labels)) == (599, 300, 10)
    assert not set(heldout.files) & set(calibration.files)
    for part in (heldout, calibration):
        assert part.pixels.shape[1:] == (8, 8)
        assert part.names == [labels[digit] for digit in part.digits]
        assert np.bincount(part.digits, minlength=10).min() > 0.09 * len(part.digits)  # stratified


def test_full_model_was_not_shown_the_other_parts(heldout: Dataset, calibration: Dataset) -> None:
    """A kernel machine carries its training scans with it, so they can be looked at."""
    model = onnx.load(DIGITS / "artefacts" / "full.onnx")
    centres = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "centres_uint8")
    trained_on = {row.tobytes() for row in centres}
    assert len(trained_on) > 4000
    for part in (heldout, calibration):
        assert not trained_on & {scan.tobytes() for scan in part.pixels}


@pytest.mark.parametrize("name", FILES)
def test_accuracy_matches_the_stated_figures(name: str, heldout: Dataset) -> None:
    claimed = figures("accuracy")
    answers = logits_of(DIGITS / "artefacts" / FILES[name], heldout.images).argmax(axis=1)
    assert claimed["n"] == len(heldout.digits)
    # Another processor's kernels may turn one near-tie.
    assert np.mean(answers == heldout.digits) == pytest.approx(claimed[name], abs=1.5 / 599)


def test_full_model_is_clearly_better() -> None:
    claimed = figures("accuracy")
    assert all(claimed["full"] - claimed[name] > 0.02 for name in EDGE)


def margins(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) gap between the two likeliest classes."""
    ascending = np.sort(softmax(logits, 1.0), axis=1)
    return np.asarray(ascending[:, -1] - ascending[:, -2])


@pytest.mark.parametrize("name", EDGE)
def test_tiers_together_reach_the_full_model(name: str, heldout: Dataset) -> None:
    claimed = figures("routing")["variants"][name]
    edge = logits_of(DIGITS / "artefacts" / EDGE[name], heldout.images)
    full = logits_of(DIGITS / "artefacts" / "full.onnx", heldout.images)
    kept = margins(edge) >= claimed["threshold"]
    right = np.where(kept, edge.argmax(axis=1), full.argmax(axis=1)) == heldout.digits
    assert kept.mean() >= 0.7
    assert right.mean() >= np.mean(full.argmax(axis=1) == heldout.digits) - 0.005
    assert kept.mean() == pytest.approx(claimed["heldout"]["edge_share"], abs=0.005)
    assert right.mean() == pytest.approx(claimed["heldout"]["accuracy_tiered"], abs=1.5 / 599)


@pytest.mark.parametrize("name", EDGE)
def test_certificate_follows_from_the_calibration_scans(name: str, heldout: Dataset, calibration: Dataset) -> None:
    """By the definition of the exact binomial bound, and it is kept on scans that proved nothing."""
    from scipy.stats import binom  # only here, because it takes most of a second

    routing = figures("routing")
    claimed = routing["variants"][name]
    for part in (calibration, heldout):
        edge = logits_of(DIGITS / "artefacts" / EDGE[name], part.images)
        kept = margins(edge) >= claimed["threshold"]
        full = logits_of(DIGITS / "artefacts" / "full.onnx", part.images)
        differs = edge.argmax(axis=1)[kept] != full.argmax(axis=1)[kept]
        if part is calibration:
            assert (claimed["certified_on"], kept.mean()) == (len(kept), pytest.approx(claimed["kept"], abs=0.005))
            assert binom.cdf(differs.sum(), kept.sum(), routing["epsilon"]) <= routing["delta"]
            # A risk of `risk_upper` would show this few errors with a probability of delta.
            chance = binom.cdf(differs.sum(), kept.sum(), claimed["risk_upper"])
            assert chance == pytest.approx(routing["delta"], abs=0.01)
        else:
            assert differs.mean() <= routing["epsilon"]
            assert differs.mean() == pytest.approx(claimed["heldout"]["disagreement"], abs=1.5 / kept.sum())


@pytest.mark.parametrize("name", FILES)
def test_probabilities_are_valid(name: str, heldout: Dataset) -> None:
    """Mean confidence and accuracy agree on held-out scans; closely where a temperature was fitted."""
    logits = logits_of(DIGITS / "artefacts" / FILES[name], heldout.images)
    correct = logits.argmax(axis=1) == heldout.digits
    tolerance = 0.01 if name == "full" else 0.03
    assert softmax(logits, 1.0).max(axis=1).mean() == pytest.approx(correct.mean(), abs=tolerance)


@pytest.mark.parametrize("file", ["edge.onnx", "full.onnx"])
def test_onnx_takes_any_batch(file: str, heldout: Dataset) -> None:
    session = onnxruntime.InferenceSession(str(DIGITS / "artefacts" / file))
    whole = session.run(["logits"], {"image": heldout.images})[0]
    alone = [session.run(["logits"], {"image": heldout.images[i : i + 1]})[0][0] for i in range(5)]
    np.testing.assert_allclose(whole[:5], alone, atol=2e-3)
    assert session.run(["logits"], {"image": heldout.images[:0]})[0].shape == (0, 10)


@pytest.mark.parametrize(("file", "dtype"), [("edge.tflite", np.float32), ("edge_int8.tflite", np.int8)])
def test_tflite_has_its_declared_types_and_runs_one_row(file: str, dtype: type, heldout: Dataset) -> None:
    interpreter = Interpreter(str(DIGITS / "artefacts" / file))
    interpreter.allocate_tensors()
    (model_input,), (model_output,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert (model_input["name"], model_input["dtype"], model_input["shape"].tolist()) == ("image", dtype, [1, 8, 8, 1])
    assert (model_output["name"], model_output["dtype"], model_output["shape"].tolist()) == ("logits", dtype, [1, 10])
    path = DIGITS / "artefacts" / file
    step = model_output["quantization"][0]
    np.testing.assert_allclose(
        logits_of(path, heldout.images[:1]), logits_of(path, heldout.images)[:1], atol=step + 1e-4
    )


def test_variants_agree(heldout: Dataset) -> None:
    onnx_logits, float_logits, int8_logits = (
        logits_of(DIGITS / "artefacts" / file, heldout.images) for file in EDGE.values()
    )
    np.testing.assert_allclose(float_logits, onnx_logits, atol=1e-4)
    interpreter = Interpreter(str(DIGITS / "artefacts" / "edge_int8.tflite"))
    step, zero = interpreter.get_output_details()[0]["quantization"]
    representable = np.clip(onnx_logits, (-128 - zero) * step, (127 - zero) * step)
    np.testing.assert_allclose(int8_logits, representable, atol=4 * step)


def test_float_tflite_buffers_are_aligned() -> None:
    text = (DIGITS / "artefacts" / "edge.tflite").read_bytes()
    model = schema.Model.GetRootAs(text)
    sizes = []
    for index in range(model.BuffersLength()):
        buffer = model.Buffers(index)
        if buffer.DataLength():
            data = buffer.DataAsNumpy()
            start = data.__array_interface__["data"][0] - np.frombuffer(text, np.uint8).ctypes.data
            assert start % 16 == 0
            sizes.append(data.size)
    assert sizes == [8, 10 * 64 * 4, 10 * 4]


def test_recipe_reproduces_the_data(remade: Path) -> None:
    """Compared by pixels and labels: PNG bytes depend on Pillow's zlib."""
    assert (remade / "labels.txt").read_bytes() == (DIGITS / "labels.txt").read_bytes()
    for part in ("heldout", "calibration"):
        assert (remade / part / "labels.csv").read_bytes() == (DIGITS / part / "labels.csv").read_bytes()
        np.testing.assert_array_equal(
            read_dataset(remade / part).pixels, read_dataset(DIGITS / part).pixels, strict=True
        )


@pytest.mark.parametrize("name", FILES)
def test_recipe_reproduces_the_models(name: str, remade: Path, heldout: Dataset) -> None:
    """Compared by logits on every held-out scan: a thousandth, or one step of the int8 scale (0.08)."""
    tolerance = 0.09 if name == "edge_tflite_int8" else 2e-3
    again = logits_of(remade / "artefacts" / FILES[name], heldout.images)
    committed = logits_of(DIGITS / "artefacts" / FILES[name], heldout.images)
    np.testing.assert_allclose(again, committed, atol=tolerance)


def test_recipe_reproduces_the_bundle(remade: Path) -> None:
    """Names, steps and policy; the files themselves are compared above, and figures below."""
    again, committed = (open_bundle(folder / "bundle").manifest for folder in (remade, DIGITS))
    described = attrgetter("name", "version", "labels", "inputs")
    assert described(again) == described(committed)
    processed = attrgetter("id", "runtime", "inputs", "postprocess")
    for one, other in zip(again.models, committed.models, strict=True):
        assert processed(one) == processed(other)
        assert one.measured == pytest.approx(other.measured, abs=1.5 / 599)
    assert again.policy.score == committed.policy.score
    assert again.policy.threshold == pytest.approx(committed.policy.threshold, abs=3e-4)


def test_every_variant_repeats_its_golden_answers(heldout: Dataset, calibration: Dataset) -> None:
    """One scan of each digit, of those that the models were fitted to: what proves and what measures stays unseen."""
    bundle = open_bundle(DIGITS / "bundle")
    golden = bundle.manifest.golden
    answers = read_golden(bundle, golden.artefact)
    assert sorted(answers.outputs) == sorted(name.replace("_", "-") for name in EDGE)
    inputs = inputs_of(answers, bundle.manifest)
    for model in bundle.manifest.edge:
        loaded = load_model(bundle, model, RuntimeOptions())
        outputs = loaded.predict(inputs).outputs
        loaded.close()
        assert outputs[PROBABILITIES].argmax(axis=1).tolist() == list(range(10))
        found = deviation(answers, model.id, outputs, loaded.task)
        assert found is not None and found <= golden.tolerance
        turned = {name: array[::-1] for name, array in outputs.items()}
        other = deviation(answers, model.id, turned, loaded.task)
        assert other is not None and other > golden.tolerance
    scans = {np.asarray(Image.open(io.BytesIO(png))).tobytes() for png in answers.inputs["image"].rows}
    assert len(scans) == 10
    assert not scans & {scan.tobytes() for part in (heldout, calibration) for scan in part.pixels}


def test_recipe_reproduces_the_certificates(remade: Path) -> None:
    again, committed = (open_bundle(folder / "bundle").manifest for folder in (remade, DIGITS))
    for name, one, other in zip(EDGE, again.edge, committed.edge, strict=True):
        rebuilt, stored = valid_certificate(again, one), valid_certificate(committed, other)
        assert (rebuilt.promise, rebuilt.n, rebuilt.audit_epsilon) == (stored.promise, stored.n, stored.audit_epsilon)
        assert rebuilt.threshold == pytest.approx(stored.threshold, abs=3e-4)
        assert rebuilt.histogram is not None
        routing = figures("routing")
        assert stored.threshold == routing["variants"][name]["threshold"]
        assert (stored.epsilon, stored.delta) == (routing["epsilon"], routing["delta"])


def test_recipe_reproduces_the_figures(remade: Path) -> None:
    assert figures("accuracy", remade) == pytest.approx(figures("accuracy"), abs=1.5 / 599)
    committed = figures("routing")["variants"]
    for name, one in figures("routing", remade)["variants"].items():
        other = committed[name]
        assert one["threshold"] == pytest.approx(other["threshold"], abs=3e-4)
        assert one["heldout"] == pytest.approx(other["heldout"], abs=1.5 / 400)
