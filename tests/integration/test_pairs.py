"""The repository's recipes for real pairs, from `bundle create` to `evaluate`, against interpreters driven by hand."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.evaluate import Evaluation, evaluate
from firstline.workbench.spec import read_recipe
from firstline_core.errors import ConfigError
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.classification import Classification

pytestmark = [pytest.mark.shared_data, pytest.mark.usefixtures("brief_row_checks")]

_MODELS = Path(__file__).parents[2] / "models"


def _evaluated(pair: str, shared_data: Path, tmp_path: Path, dataset: Dataset) -> Evaluation:
    warnings: list[str] = []
    spec = read_recipe(_MODELS / pair / "recipe.toml", shared_data / pair)
    bundle = create_bundle(spec, tmp_path / pair, warn=warnings.append)
    assert warnings == []
    return evaluate(bundle, dataset, variants=["all"])


def _tflite(file: Path, rows: list[Any]) -> Any:
    """argmax of each row, fed as the bytes that the model stores."""
    interpreter = Interpreter(str(file), num_threads=1)
    interpreter.allocate_tensors()
    model_input, model_output = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    answers = []
    for row in rows:
        interpreter.set_tensor(model_input["index"], row[None])
        interpreter.invoke()
        answers.append(interpreter.get_tensor(model_output["index"])[0])
    return np.array(answers)


def _cropped(encoded: bytes, side: int) -> Any:
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    inner = round(0.875 * min(image.size))
    left, top = (image.width - inner) // 2, (image.height - inner) // 2
    return np.asarray(
        image.crop((left, top, left + inner, top + inner)).resize((side, side), Image.Resampling.BILINEAR)
    )


def _task(folder: Path) -> Classification:
    return Classification(read_recipe(_MODELS / folder.name / "recipe.toml", folder).labels)


def test_imagenet_pair_matches_its_models(shared_data: Path, tmp_path: Path) -> None:
    """A background class, a centre crop, two edge variants of their own sizes, quantised everywhere."""
    folder = shared_data / "imagenet-cascade"
    dataset = open_dataset(folder / "dev", 100)
    found = _evaluated("imagenet-cascade", shared_data, tmp_path, dataset)
    models = [found.full, *(variant.edge for variant in found.variants)]
    by_id = {model.id: model.quality["accuracy"] for model in models}

    images, truth = list(dataset.contents()), dataset.required_truth(_task(folder))[LABEL]
    for model_id, file, side in [
        ("v1-128", "mobilenet_v1_0.25_128_quant", 128),
        ("v1-160", "mobilenet_v1_0.5_160_quant", 160),
        ("v2-224", "tf2_mobilenet_v2_1.0_224_ptq", 224),
    ]:
        rows = [_cropped(encoded, side) for encoded in images]
        answers = _tflite(folder / "models" / f"{file}.tflite", rows)[:, 1:].argmax(axis=1)  # column 0: background
        assert by_id[model_id] == pytest.approx((answers == np.array(truth)).mean(), abs=1 / len(truth) + 1e-9)

    assert by_id["v1-128"] < by_id["v1-160"] < by_id["v2-224"]
    assert by_id["v1-128"] > 0.4  # 0.001 by chance, 0.01 without the label offset
    for variant in found.variants:
        assert variant.edge.quality["accuracy"] < variant.tiered.quality["accuracy"]
        assert 0 < variant.tiered.edge_share < 1
        assert variant.tiered.bytes_sent < variant.tiered.bytes_all


def test_cifar10_pair_matches_its_models(shared_data: Path, tmp_path: Path) -> None:
    """Two runtimes in one pair: int8 TFLite with a softmax of its own, ONNX with logits and ImageNet's scaling."""
    folder = shared_data / "cifar10-cascade"
    dataset = open_dataset(folder / "dev", 250)
    found = _evaluated("cifar10-cascade", shared_data, tmp_path, dataset)

    images, truth = list(dataset.contents()), dataset.required_truth(_task(folder))[LABEL]
    pixels = [np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")) for encoded in images]
    stored = [(rows.astype(np.int16) - 128).astype(np.int8) for rows in pixels]
    edge = _tflite(folder / "models/mlperf_resnet8_int8.tflite", stored).argmax(axis=1)
    session = onnxruntime.InferenceSession(folder / "models/resnet56_cifar10.onnx", providers=["CPUExecutionProvider"])
    scaled = (np.array(pixels, np.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    logits = session.run(["logits"], {"input": scaled.transpose(0, 3, 1, 2).astype(np.float32)})[0]

    [variant] = found.variants
    one_image = pytest.approx(0, abs=1 / len(truth) + 1e-9)
    assert variant.edge.quality["accuracy"] - (edge == np.array(truth)).mean() == one_image
    assert found.full.quality["accuracy"] - (logits.argmax(axis=1) == np.array(truth)).mean() == one_image
    assert 0.6 < variant.edge.quality["accuracy"] < found.full.quality["accuracy"]
    assert variant.edge.quality["accuracy"] < variant.tiered.quality["accuracy"]


def test_missing_background_class_is_detected(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "imagenet-cascade"
    spec = read_recipe(_MODELS / "imagenet-cascade" / "recipe.toml", folder)
    with pytest.raises(ConfigError, match=r"1,001 outputs and there are 1,000 labels: add label_offset:1"):
        create_bundle(replace(spec, edge=(replace(spec.edge[0], postprocess=()),)), tmp_path / "out")

    edge, full = (replace(model, postprocess=()) for model in spec.edge)
    counted = replace(spec, labels=("background", *spec.labels), edge=(edge,), full=full)
    warnings: list[str] = []
    bundle = create_bundle(counted, tmp_path / "out", warn=warnings.append)
    assert len(warnings) == 2
    with pytest.raises(ConfigError, match=r"labels\.csv:2 calls 'canoe' label 472, but in the bundle it is label 473"):
        evaluate(bundle, open_dataset(folder / "dev", 5))
