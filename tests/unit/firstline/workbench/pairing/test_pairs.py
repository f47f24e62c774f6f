"""Pairs of models of different exporters, without labels: none is read wrongly, and few need a person's choice."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from support import detector_graphs

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.pairing.pair import ReadPair, draft_of, label_lists, read_files, read_pair, split
from firstline.workbench.pairing.sources import open_data
from firstline.workbench.pairing.specification import PairSpec
from firstline.workbench.step_syntax import spell
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.regression import Regression

OPTIONS = RuntimeOptions()


class Case(NamedTuple):
    """A pair: its files and images below the shared data, and the right steps before and after each model."""

    edge: str
    full: str
    data: str
    images: int
    steps: dict[str, tuple[str, str]]


YOLOX = ("decode:BGR,resize:416x416:letterbox=corner:pad=114,scale:0:1,layout:NCHW", "yolox,suppress:0.3")
DEEPLAB = "decode:RGB,resize:513x513:letterbox=corner:pad=128:rounding=nearest,scale:128:128"
CIFAR = "decode:RGB,resize:32x32,"
IMAGENET = "scale:123.675/116.28/103.53:58.395/57.12/57.375,layout:NCHW"

REAL = {
    "FastestDet and YOLOX": Case(
        "coco-cascade/models/fastestdet.onnx",
        "coco-cascade/models/yolox_nano.onnx",
        "coco-cascade/dev/images",
        4,
        {"edge": ("decode:BGR,resize:352x352,scale:0:255,layout:NCHW", "fastestdet,suppress:0.6"), "full": YOLOX},
    ),
    "TensorFlow's SSD and YOLOX": Case(
        "coco-cascade/models/ssd_mobilenet_v1_quant.tflite",
        "coco-cascade/models/yolox_nano.onnx",
        "coco-cascade/dev/images",
        3,
        {"edge": ("decode:RGB,resize:300x300,scale:128:128", "ssd,class_map"), "full": YOLOX},
    ),
    "YOLOX for TFLite and for ONNX": Case(
        "coco-cascade/models/yolox_nano_dynamic_range.tflite",
        "coco-cascade/models/yolox_nano.onnx",
        "coco-cascade/dev/images",
        3,
        {"edge": YOLOX, "full": YOLOX},
    ),
    "two DeepLabs": Case(
        "pascal-segmentation-cascade/models/deeplabv3_mnv2_dm05_pascal_quant_logits.tflite",
        "pascal-segmentation-cascade/models/deeplabv3_mnv2_pascal_quant.tflite",
        "coco-cascade/dev/images",
        3,
        {"edge": (DEEPLAB, "class_scores"), "full": (DEEPLAB, "")},
    ),
    "MobileNets of TensorFlow 1 and 2": Case(
        "imagenet-cascade/models/mobilenet_v1_0.5_160_quant.tflite",
        "imagenet-cascade/models/tf2_mobilenet_v2_1.0_224_ptq.tflite",
        "imagenet-cascade/dev/images",
        24,
        {
            "edge": ("decode:RGB,center_crop:0.875,resize:160x160,scale:128:128", "label_offset:1"),
            "full": ("decode:RGB,center_crop:0.875,resize:224x224,scale:127:127.5", "label_offset:1"),
        },
    ),
    "MLPerf Tiny and PyTorch": Case(
        "cifar10-cascade/models/mlperf_resnet8_int8.tflite",
        "cifar10-cascade/models/resnet20_cifar10.onnx",
        "cifar10-cascade/dev/images.zip",
        128,
        {"edge": (f"{CIFAR}scale:0:1", ""), "full": (f"{CIFAR}{IMAGENET}", "softmax")},
    ),
    "MLPerf Tiny in floating point and PyTorch": Case(
        "cifar10-cascade/models/mlperf_resnet8_float.tflite",
        "cifar10-cascade/models/resnet20_cifar10.onnx",
        "cifar10-cascade/dev/images.zip",
        128,
        {"edge": (f"{CIFAR}scale:0:1", ""), "full": (f"{CIFAR}{IMAGENET}", "softmax")},
    ),
    "two of PyTorch": Case(
        "cifar10-cascade/models/resnet20_cifar10.onnx",
        "cifar10-cascade/models/resnet56_cifar10.onnx",
        "cifar10-cascade/dev/images.zip",
        128,
        {"edge": (f"{CIFAR}{IMAGENET}", "softmax"), "full": (f"{CIFAR}{IMAGENET}", "softmax")},
    ),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", REAL)
def test_real_pairs_are_read_without_a_question(shared_data: Path, tmp_path: Path, name: str) -> None:
    case = REAL[name]
    pair = _pair(tmp_path, shared_data / case.edge, shared_data / case.full, shared_data / case.data, case.images)
    for role, (before, after) in case.steps.items():
        reading = pair.models[role]
        assert reading.preprocess == before
        assert reading.postprocess.split(":")[0] == after.split(":")[0] or reading.postprocess.startswith(after)


OTHERS = {
    "spoken digits": Case(
        "spoken-digits-cascade/models/spoken_digits_edge.onnx",
        "spoken-digits-cascade/models/spoken_digits_full.onnx",
        "spoken-digits-cascade/dev",
        48,
        dict.fromkeys(("edge", "full"), ("decode_audio,mono,resample:8000,crop:8000,pad:8000", "softmax")),
    ),
    "sentences": Case(
        "clinc-cascade/models/clinc_edge_tfidf.onnx",
        "clinc-cascade/models/clinc_full.onnx",
        "clinc-cascade/dev",
        24,
        {"edge": ("", ""), "full": ("", "softmax")},
    ),
    "diamonds": Case(
        "diamonds-tabular-cascade/models/diamonds_edge_lr.onnx",
        "diamonds-tabular-cascade/models/diamonds_full_gb.onnx",
        "diamonds-tabular-cascade/dev",
        48,
        {"edge": ("", ""), "full": ("", "")},
    ),
    "forecasts": Case(
        "nab-forecast-cascade/models/nab_spread.onnx",
        "nab-forecast-cascade/models/nab_full.onnx",
        "nab-forecast-cascade/dev/series",
        100,
        {"edge": ("standardize", "spread:spread,unstandardize"), "full": ("standardize", "unstandardize")},
    ),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", OTHERS)
def test_real_pairs_of_other_data_need_no_question(shared_data: Path, tmp_path: Path, name: str) -> None:
    case = OTHERS[name]
    spec = _spec(tmp_path, shared_data / case.edge, shared_data / case.full)
    files, data = read_files(spec, OPTIONS), shared_data / case.data
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
        _pair(tmp_path, models / "yolox_nano_int8.tflite", models / "yolox_nano.onnx", data, 3)
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
