"""Third-party models and photographs through a bundle's processing, against the interpreters driven by hand."""

import csv
import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from PIL import Image
from support.images import by_name, images

from bench.support.bundles import model, write_manifest
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.processing.boxes import anchors, compile_detection
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import (
    Anchors,
    CenterCrop,
    Decode,
    LabelOffset,
    Layout,
    Resize,
    Scale,
    Softmax,
    Suppress,
)
from firstline_core.runtime.select import RuntimeOptions

pytestmark = pytest.mark.shared_data

ROWS = 50
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def bundle_of(path: Path, root: Path, labels: list[str], **fields: Any) -> Bundle:
    copied = Path(shutil.copyfile(path, root / path.name))
    return write_manifest(root, [model(copied, root, **fields)], labels)


def predict(bundle: Bundle, encoded: list[bytes]) -> Any:
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    return loaded.predict(by_name(images(*encoded))).outputs["probabilities"]


def interpret(path: Path, rows: Any) -> Any:
    interpreter = Interpreter(model_content=path.read_bytes(), num_threads=1)
    interpreter.allocate_tensors()
    feed, output = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    found = []
    for row in rows:
        interpreter.set_tensor(feed, row[None])
        interpreter.invoke()
        found.append(interpreter.get_tensor(output)[0])
    return np.array(found).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "side", "at_least"),
    [("mobilenet_v1_0.25_128_quant", 128, 0.42), ("mobilenet_v2_1.0_224_quant", 224, 0.68)],
)
def test_imagenet_photographs(shared_data: Path, tmp_path: Path, name: str, side: int, at_least: float) -> None:
    folder = shared_data / "imagenet-cascade"
    with (folder / "dev" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[:ROWS]
    encoded = [(folder / "dev" / "images" / Path(row["file"]).name).read_bytes() for row in rows]
    path = folder / "models" / f"{name}.tflite"
    bundle = bundle_of(
        path,
        tmp_path,
        [str(label) for label in range(1000)],
        preprocess=(Decode(), CenterCrop(0.875), Resize(side, side), Scale((128.0,), (128.0,))),
        postprocess=(LabelOffset(1),),
    )
    probabilities = predict(bundle, encoded)

    pixels = []
    for content in encoded:
        image = Image.open(io.BytesIO(content)).convert("RGB")
        cut = round(0.875 * min(image.size))
        left, top = (image.width - cut) // 2, (image.height - cut) // 2
        square = image.crop((left, top, left + cut, top + cut)).resize((side, side), Image.Resampling.BILINEAR)
        pixels.append(np.asarray(square))
    np.testing.assert_array_equal(probabilities, interpret(path, pixels)[:, 1:] / 256)
    right = probabilities.argmax(axis=1) == np.array([int(row["label"]) for row in rows])
    assert right.mean() > at_least


@pytest.mark.filterwarnings("ignore:Warning. Enabling `experimental_preserve_all_tensors`")
def test_anchors_of_an_ssd(shared_data: Path) -> None:
    folder = shared_data / "coco-cascade"
    path = folder / "models" / "ssd_mobilenet_v1_quant.tflite"
    interpreter = Interpreter(model_content=path.read_bytes(), experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    tensors = {tensor["name"]: tensor for tensor in interpreter.get_tensor_details()}

    def real(name: str) -> Any:
        scale, zero = tensors[name]["quantization"]
        return ((interpreter.get_tensor(tensors[name]["index"]).astype(np.float32) - zero) * scale).reshape(1917, -1)

    step, size = Anchors("offsets", "scores", "none"), InputSize(300, 300)
    resolution = tensors["anchors"]["quantization"][0]
    np.testing.assert_allclose(anchors(step, size)[:, [1, 0, 3, 2]], real("anchors"), atol=resolution / 2)

    image = Image.open(next(iter(sorted(folder.rglob("dev/**/*.jpg"))))).convert("RGB").resize((300, 300))
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.asarray(image)[None])
    interpreter.invoke()
    boxes, classes, scores, _ = (interpreter.get_tensor(each["index"])[0] for each in interpreter.get_output_details())
    detect = compile_detection([step, Suppress(float(scores[0]), iou=0.6)], size, 1)
    raw = {"offsets": real("Squeeze")[None], "scores": real("convert_scores")[None]}
    found = detect(raw, np.array([[300, 300, 1, 1, 0, 0]], np.float32))
    assert (found["classes"][0, 0], found["scores"][0, 0]) == (classes[0], scores[0])
    np.testing.assert_allclose(found["boxes"][0, 0] / 300, boxes[0, [1, 0, 3, 2]], atol=0.01)


def cifar(shared_data: Path) -> tuple[Path, list[str], list[bytes], Any]:
    folder = shared_data / "cifar10-cascade"
    with (folder / "dev" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    chosen = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:ROWS]]
    with zipfile.ZipFile(folder / "dev" / "images.zip") as archive:
        encoded = [archive.read(row["file"]) for row in chosen]
    labels = (folder / "labels.txt").read_text().split()
    return folder / "models", labels, encoded, np.array([int(row["label"]) for row in chosen])


def pixels_of(encoded: list[bytes]) -> Any:
    return np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in encoded])


def test_cifar_images_through_an_int8_model(shared_data: Path, tmp_path: Path) -> None:
    models, labels, encoded, truth = cifar(shared_data)
    path = models / "mlperf_resnet8_int8.tflite"
    probabilities = predict(bundle_of(path, tmp_path, labels, preprocess=(Decode(),)), encoded)
    stored = (pixels_of(encoded).astype(np.int16) - 128).astype(np.int8)
    np.testing.assert_array_equal(probabilities, (interpret(path, stored) + 128) / 256)
    assert (probabilities.argmax(axis=1) == truth).mean() > 0.68


def test_cifar_images_through_an_onnx_model(shared_data: Path, tmp_path: Path) -> None:
    models, labels, encoded, truth = cifar(shared_data)
    path = models / "resnet20_cifar10.onnx"
    scale = Scale(tuple((255 * MEAN).tolist()), tuple((255 * STD).tolist()))
    steps = {"preprocess": (Decode(), scale, Layout("NCHW")), "postprocess": (Softmax(),)}
    probabilities = predict(bundle_of(path, tmp_path, labels, **steps), encoded)
    normal = ((pixels_of(encoded) / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32)
    logits = onnxruntime.InferenceSession(path).run(None, {"input": normal})[0]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=2e-5)
    assert (probabilities.argmax(axis=1) == truth).mean() > 0.75
