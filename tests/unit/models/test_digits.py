"""The committed digits pair: what it claims is what it does, and the recipe makes it again."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray
from onnx import numpy_helper
from PIL import Image

DIGITS = Path(__file__).parents[3] / "models" / "digits"
EDGE = {
    "edge_onnx": "edge.onnx",
    "edge_tflite_float": "edge.tflite",
    "edge_tflite_int8": "edge_int8.tflite",
}
FILES = {**EDGE, "full": "full.onnx"}


def load(name: str) -> ModuleType:
    """A file of the recipe, by path: `models` is not a package that anyone imports."""
    spec = importlib.util.spec_from_file_location(f"digits_{name}", DIGITS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


logits_of = load("run_files").logits_of
routing = load("routing")


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
        [sys.executable, DIGITS / "recipe.py", "--out", out], capture_output=True, text=True, timeout=100
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
def test_accuracy_is_as_claimed(name: str, heldout: Dataset) -> None:
    claimed = json.loads((DIGITS / "accuracy.json").read_text(encoding="utf-8"))
    answers = logits_of(DIGITS / "artefacts" / FILES[name], heldout.images).argmax(axis=1)
    assert claimed["n"] == len(heldout.digits)
    # Another processor's kernels may turn one near-tie.
    assert np.mean(answers == heldout.digits) == pytest.approx(claimed[name], abs=1.5 / 599)


def test_full_model_is_clearly_better() -> None:
    claimed = json.loads((DIGITS / "accuracy.json").read_text(encoding="utf-8"))
    assert all(claimed["full"] - claimed[name] > 0.02 for name in EDGE)


@pytest.mark.parametrize("name", EDGE)
def test_tiers_together_reach_the_full_model(name: str, heldout: Dataset) -> None:
    policy = json.loads((DIGITS / "routing.json").read_text(encoding="utf-8"))
    edge = logits_of(DIGITS / "artefacts" / EDGE[name], heldout.images)
    full = logits_of(DIGITS / "artefacts" / "full.onnx", heldout.images)
    found = routing.tiered(edge, full, heldout.digits, policy["temperature"], policy["threshold"])
    assert found.edge_share >= 0.75
    assert found.accuracy >= np.mean(full.argmax(axis=1) == heldout.digits) - 0.005
    assert found.edge_share == pytest.approx(policy["heldout"][name]["edge_share"], abs=0.005)
    assert found.accuracy == pytest.approx(policy["heldout"][name]["accuracy_tiered"], abs=1.5 / 599)


@pytest.mark.parametrize(("name", "temperature"), [("edge.onnx", None), ("full.onnx", 1.0)])
def test_probabilities_are_sane(name: str, temperature: float | None, heldout: Dataset) -> None:
    """Mean confidence and accuracy agree on scans that calibration never saw."""
    if temperature is None:
        temperature = json.loads((DIGITS / "routing.json").read_text(encoding="utf-8"))["temperature"]
    logits = logits_of(DIGITS / "artefacts" / name, heldout.images)
    correct = logits.argmax(axis=1) == heldout.digits
    assert routing.confidence(logits, temperature).mean() == pytest.approx(correct.mean(), abs=0.01)


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
    (given,), (taken,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert (given["name"], given["dtype"], given["shape"].tolist()) == ("image", dtype, [1, 8, 8, 1])
    assert (taken["name"], taken["dtype"], taken["shape"].tolist()) == ("logits", dtype, [1, 10])
    path = DIGITS / "artefacts" / file
    step = taken["quantization"][0]
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


def test_recipe_makes_the_same_data(remade: Path) -> None:
    """Compared by pixels and labels: PNG bytes depend on Pillow's zlib."""
    assert (remade / "labels.txt").read_bytes() == (DIGITS / "labels.txt").read_bytes()
    for part in ("heldout", "calibration"):
        assert (remade / part / "labels.csv").read_bytes() == (DIGITS / part / "labels.csv").read_bytes()
        np.testing.assert_array_equal(
            read_dataset(remade / part).pixels, read_dataset(DIGITS / part).pixels, strict=True
        )


@pytest.mark.parametrize("name", FILES)
def test_recipe_makes_the_same_models(name: str, remade: Path, heldout: Dataset) -> None:
    """Compared by logits on every held-out scan: a thousandth, or one step of the int8 scale (0.08)."""
    tolerance = 0.09 if name == "edge_tflite_int8" else 2e-3
    again = logits_of(remade / "artefacts" / FILES[name], heldout.images)
    committed = logits_of(DIGITS / "artefacts" / FILES[name], heldout.images)
    np.testing.assert_allclose(again, committed, atol=tolerance)


def test_recipe_measures_the_same_figures(remade: Path) -> None:
    again, committed = (
        json.loads((folder / "accuracy.json").read_text(encoding="utf-8")) for folder in (remade, DIGITS)
    )
    assert again == pytest.approx(committed, abs=1.5 / 599)
    again, committed = (
        json.loads((folder / "routing.json").read_text(encoding="utf-8")) for folder in (remade, DIGITS)
    )
    for key in ("temperature", "threshold"):
        assert again[key] == pytest.approx(committed[key], abs=3e-4)


def test_temperature_is_recovered() -> None:
    """Digits drawn from softmax(logits / 2.5) are best explained by T = 2.5."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=6, size=(20_000, 10))
    drawn = (logits / 2.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    assert routing.fit_temperature(logits, drawn) == pytest.approx(2.5, rel=0.03)


def test_threshold_keeps_the_share() -> None:
    confidences = np.random.default_rng(0).uniform(size=1000)
    assert np.mean(confidences >= routing.choose_threshold(confidences)) == pytest.approx(routing.EDGE_SHARE, abs=0.002)


def test_tiered_takes_the_full_answer_below_the_threshold() -> None:
    edge = np.array([[5.0, 0.0], [0.1, 0.0]])
    full = np.array([[0.0, 1.0], [0.0, 1.0]])
    found = routing.tiered(edge, full, np.array([0, 1]), temperature=1.0, threshold=0.9)
    assert found == (0.5, 1.0)
