"""Pairs of models of different exporters, without labels: none is read wrongly, and few need a person's choice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from support import detector_graphs

from bench.support.onnx_models import float_graph
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.pairing.pair import ReadPair, draft_of, label_lists, read_files, read_pair, split
from firstline.workbench.pairing.sources import open_data
from firstline.workbench.pairing.specification import PairSpec
from firstline.workbench.step_syntax import spell
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.base import Task
from firstline_core.tasks.regression import Regression

OPTIONS = RuntimeOptions()


Steps: TypeAlias = tuple[str, str]
"""The steps before and after a model."""


class Case(NamedTuple):
    """A pair of the shared data.

    Attributes:
        folder: its folder.
        edge, full: names of the models' files, in its subfolder `models`.
        images: number of inputs that are read.
        edge_steps, full_steps: the right steps.
        data: path of the data in the folder.
    """

    folder: str
    edge: str
    full: str
    images: int
    edge_steps: Steps
    full_steps: Steps
    data: str = "dev/images"

    @property
    def steps(self) -> dict[str, Steps]:
        return {"edge": self.edge_steps, "full": self.full_steps}

    def paths(self, shared: Path) -> tuple[Path, Path, Path]:
        """Returns the two models and the data."""
        models = shared / self.folder / "models"
        return models / self.edge, models / self.full, shared / self.folder / self.data


FASTESTDET = ("decode:BGR,resize:352x352,scale:0:255,layout:NCHW", "fastestdet,suppress:0.6")
YOLOX = ("decode:BGR,resize:416x416:letterbox=corner:pad=114,scale:0:1,layout:NCHW", "yolox,suppress:0.3")
SSD = ("decode:RGB,resize:300x300,scale:128:128", "ssd,class_map")
DEEPLAB = "decode:RGB,resize:513x513:letterbox=corner:pad=128:rounding=nearest,scale:128:128"
MOBILENET_1 = ("decode:RGB,center_crop:0.875,resize:160x160,scale:128:128", "label_offset:1")
MOBILENET_2 = ("decode:RGB,center_crop:0.875,resize:224x224,scale:127:127.5", "label_offset:1")
TINY = ("decode:RGB,resize:32x32,scale:0:1", "")
IMAGENET = "scale:123.675/116.28/103.53:58.395/57.12/57.375,layout:NCHW"
RESNET = (f"decode:RGB,resize:32x32,{IMAGENET}", "softmax")
DIGITS = ("decode_audio,mono,resample:8000,crop:8000,pad:8000", "softmax")
NOTHING = ("", "")

COCO, CIFAR = "coco-cascade", "cifar10-cascade"
RESNET_8, RESNET_20 = "mlperf_resnet8_int8.tflite", "resnet20_cifar10.onnx"
DEEPLABS = ("deeplabv3_mnv2_dm05_pascal_quant_logits.tflite", "deeplabv3_mnv2_pascal_quant.tflite")
MOBILENETS = ("mobilenet_v1_0.5_160_quant.tflite", "tf2_mobilenet_v2_1.0_224_ptq.tflite")

REAL = {
    "FastestDet and YOLOX": Case(COCO, "fastestdet.onnx", "yolox_nano.onnx", 2, FASTESTDET, YOLOX),
    "TensorFlow's SSD and YOLOX": Case(COCO, "ssd_mobilenet_v1_quant.tflite", "yolox_nano.onnx", 2, SSD, YOLOX),
    "YOLOX for TFLite and for ONNX": Case(COCO, "yolox_nano_dynamic_range.tflite", "yolox_nano.onnx", 2, YOLOX, YOLOX),
    "two DeepLabs": Case(
        "pascal-segmentation-cascade", *DEEPLABS, 3, (DEEPLAB, "class_scores"), (DEEPLAB, ""), f"../{COCO}/dev/images"
    ),
    "MobileNets of TensorFlow 1 and 2": Case("imagenet-cascade", *MOBILENETS, 12, MOBILENET_1, MOBILENET_2),
    "MLPerf Tiny and PyTorch": Case(CIFAR, RESNET_8, RESNET_20, 128, TINY, RESNET, "dev/images.zip"),
    "MLPerf Tiny in floating point and PyTorch": Case(
        CIFAR, "mlperf_resnet8_float.tflite", RESNET_20, 128, TINY, RESNET, "dev/images.zip"
    ),
    "two of PyTorch": Case(CIFAR, RESNET_20, "resnet56_cifar10.onnx", 128, RESNET, RESNET, "dev/images.zip"),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", REAL)
def test_real_pairs_are_read_without_a_question(shared_data: Path, tmp_path: Path, name: str) -> None:
    case = REAL[name]
    pair = _pair(tmp_path, *case.paths(shared_data), case.images)
    for role, (before, after) in case.steps.items():
        reading = pair.models[role]
        assert reading.preprocess == before
        assert reading.postprocess.split(":")[0] == after.split(":")[0] or reading.postprocess.startswith(after)


SPREAD, FORECAST = ("standardize", "spread:spread,unstandardize"), ("standardize", "unstandardize")

OTHERS = {
    "spoken digits": Case(
        "spoken-digits-cascade", "spoken_digits_edge.onnx", "spoken_digits_full.onnx", 48, DIGITS, DIGITS, "dev"
    ),
    "sentences": Case("clinc-cascade", "clinc_edge_tfidf.onnx", "clinc_full.onnx", 24, NOTHING, ("", "softmax"), "dev"),
    "diamonds": Case(
        "diamonds-tabular-cascade", "diamonds_edge_lr.onnx", "diamonds_full_gb.onnx", 48, NOTHING, NOTHING, "dev"
    ),
    "forecasts": Case("nab-forecast-cascade", "nab_spread.onnx", "nab_full.onnx", 100, SPREAD, FORECAST, "dev/series"),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", OTHERS)
def test_real_pairs_of_other_data_need_no_question(shared_data: Path, tmp_path: Path, name: str) -> None:
    case = OTHERS[name]
    edge, full, data = case.paths(shared_data)
    spec = _spec(tmp_path, edge, full)
    files = read_files(spec, OPTIONS)
    dataset = open_data(
        data, open_dataset, files, lists=label_lists(spec, files, data), out=spec.out, show=lambda sentence: None
    )
    pair = read_pair(spec, files, dataset.some(case.images), OPTIONS)
    for role, steps in case.steps.items():
        reading = pair.models[role]
        assert (reading.preprocess, reading.postprocess) == steps
    tokens = {feed.tensor: feed.steps for feed in pair.models["full"].feeds if "tokenize" in feed.steps}
    if name == "sentences":
        assert [step.split("tokenizer.json")[1] for step in tokens.values()] == [
            ":ids:64:padding=length:truncate=true",
            ":mask:64:padding=length:truncate=true",
        ]
        assert [feed.spec.name for feed in pair.models["edge"].feeds] == ["text"]
    if name == "forecasts":
        assert isinstance(pair.task, Regression)
        assert 0.1 < pair.task.scaled < 1


@pytest.mark.shared_data
def test_a_detector_that_its_quantisation_broke_is_refused(shared_data: Path, tmp_path: Path) -> None:
    models = shared_data / "coco-cascade" / "models"
    data = shared_data / "coco-cascade" / "dev" / "images"
    with pytest.raises(ConfigError, match=r"ends of a quantised range: one scale was used for boxes and scores"):
        _pair(tmp_path, models / "yolox_nano_int8.tflite", models / "yolox_nano.onnx", data, 1)
    assert not (tmp_path / "out" / "bundle").exists()


MADE: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path], tuple[str, str]]] = {
    "YOLOv5 and YOLOv8": (
        detector_graphs.yolov5,
        detector_graphs.yolov8,
        ("yolo:objectness=true,suppress:0.3", "yolo,suppress:0.3"),
    ),
    "YOLO11 for TFLite and DETR": (
        detector_graphs.yolo11_in_fractions,
        detector_graphs.detr,
        ("yolo:unit=fractions,suppress:0.3", "detr:logits:pred_boxes:softmax,class_map:coco91,suppress:0.5:iou=1"),
    ),
    "TensorFlow and RT-DETR": (
        detector_graphs.tensorflow,
        detector_graphs.rt_detr,
        ("ssd,class_map:coco91,suppress:0.5:iou=1", "detr:logits:pred_boxes:sigmoid,suppress:0.5:iou=1"),
    ),
    "SSD without suppression inside and EfficientNMS": (
        detector_graphs.ssd_anchors,
        detector_graphs.efficient_nms,
        (
            "anchors:offsets:scores,class_map:coco90,suppress:0.5",
            "ssd:det_boxes:det_classes:det_scores:num_dets:corners=xyxy:unit=pixels,suppress:0.5:iou=1",
        ),
    ),
    "YOLOv7 with suppression inside and torchvision": (
        detector_graphs.yolov7_end_to_end,
        detector_graphs.torchvision,
        (
            "box_rows:pixels:numbered=true,suppress:0.3:iou=1",
            "ssd:boxes:labels:scores:corners=xyxy:unit=pixels,class_map:coco91,suppress:0.5:iou=1",
        ),
    ),
    "YOLOv8 and YOLOv10 with names": (
        detector_graphs.yolov8_with_names,
        detector_graphs.end_to_end,
        ("yolo,suppress:0.3", "box_rows:pixels,suppress:0.3:iou=1"),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_made_pairs_are_read_without_a_question_and_agree(tmp_path: Path, name: str) -> None:
    make_edge, make_full, steps = MADE[name]
    data = tmp_path / "images"
    data.mkdir()
    side = detector_graphs.SIDE
    for number in range(8):
        Image.fromarray(np.full((side, side, 3), 20 * number, np.uint8)).save(data / f"{number}.png")
    files = make_edge(tmp_path / "edge.onnx"), make_full(tmp_path / "full.onnx")
    pair = _pair(tmp_path, *files, data, 8)
    assert tuple(pair.models[role].postprocess for role in ("edge", "full")) == steps
    assert pair.agreement == "it finds 8 of the 8 objects that the full model finds, and 0 others"
    with draft_of(_spec(tmp_path, *files), pair, OPTIONS) as bundle:
        assert [spell(model.postprocess[:1]).split(":")[0] for model in bundle.manifest.models] == [
            step.split(",")[0].split(":")[0] for step in steps
        ]


def _pair(folder: Path, edge: Path, full: Path, data: Path, images: int) -> ReadPair:
    spec = _spec(folder, edge, full)
    return read_pair(spec, read_files(spec, OPTIONS), open_dataset(data, images), OPTIONS)


def _spec(folder: Path, edge: Path, full: Path) -> PairSpec:
    # A busy machine runs as many images as an idle one.
    return PairSpec({"edge": edge, "full": full}, folder / "out", budget_s=1e6)


def test_rows_without_a_group_decide_independently(tmp_path: Path) -> None:
    rows = [f"{row},{'' if row % 2 else row // 20}\n" for row in range(400)]
    (tmp_path / "rows.csv").write_text("x,group\n" + "".join(rows))
    deciding, rest = split(open_dataset(tmp_path / "rows.csv"))
    assert 40 <= len(deciding) <= 120 and len(deciding) + len(rest) == 400
    assert not {group for group in deciding.clusters if group} & set(rest.clusters)
    assert "" in deciding.clusters and "" in rest.clusters


@pytest.mark.parametrize(
    ("output", "labels", "task", "threshold"),
    [
        ("price", [-1.5, 2.5, 0.5], Regression(("label",), absolute=0.5), "0"),
        ("score", [0, 1, 0], Anomaly(("normal", "anomaly")), "1.5:above"),
    ],
)
def test_rows_with_labels_decide_first(
    tmp_path: Path, output: str, labels: list[float], task: Task, threshold: str
) -> None:
    multiply = [helper.make_node("MatMul", ["x", "w"], [output])]
    float_graph(tmp_path / "m.onnx", multiply, {"x": ["n", 1]}, {output: ["n", 1]}, w=np.ones((1, 1), np.float32))
    rows = [{"x": [float(value)], "label": None} for value in np.random.default_rng(0).normal(size=57)]
    rows += [{"x": [x], "label": label} for x, label in zip((-1.0, 3.0, 0.0), labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = PairSpec({"full": tmp_path / "m.onnx"}, tmp_path / "out", budget_s=0)  # few rows run
    options = RuntimeOptions()
    pair = read_pair(spec, read_files(spec, options), open_dataset(tmp_path / "rows.jsonl"), options)
    assert pair.task == task and pair.models["full"].threshold.startswith(threshold)
