"""Models of several exporters: the family is recognised, and its steps give the known object."""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image
from support import detector_graphs
from support.detector_graphs import BOX, LABEL, SIDE
from support.sample_models import linear_model

from bench.support.onnx_models import float_graph, write_graph
from firstline.workbench.decodings import Trials
from firstline.workbench.model_file import ModelFile, read_model_file, with_output_rows
from firstline.workbench.recognition import recognise
from firstline.workbench.recognition.reading import COCO, SURE, Reading, Surroundings, Truth
from firstline.workbench.step_syntax import parse_preprocess
from firstline.workbench.trial import trial_outputs
from firstline_core.errors import InferenceError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.detection import Detection, detections
from firstline_core.types import TensorSpec, object_array

PICTURE = Image.new("RGB", (SIDE, SIDE), "grey")


def read(path: Path) -> list[Reading]:
    described = read_model_file(path)
    return recognise(*with_output_rows(described, trial_outputs(path, described, PICTURE)))


DETECTORS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "YOLOv5": (detector_graphs.yolov5, "yolov5 or yolov7"),
    "YOLOv8": (detector_graphs.yolov8, "yolov8 to yolo11"),
    "YOLOv8 with names and free sizes": (detector_graphs.yolov8_with_names, "yolov8 to yolo11"),
    "YOLO11 for TFLite": (detector_graphs.yolo11_in_fractions, "yolov8 to yolo11"),
    "YOLOX": (detector_graphs.yolox, "yolox"),
    "YOLOX decoded": (detector_graphs.yolox_decoded, "yolox with decoding inside"),
    "YOLOv10": (detector_graphs.end_to_end, "box rows"),
    "DETR": (detector_graphs.detr, "detr"),
    "RT-DETR": (detector_graphs.rt_detr, "detr"),
    "RT-DETR in one output": (detector_graphs.queries_in_one_output, "rt-detr"),
    "TensorFlow": (detector_graphs.tensorflow, "ssd"),
    "SSD without suppression inside": (detector_graphs.ssd_anchors, "ssd anchors"),
    "EfficientNMS": (detector_graphs.efficient_nms, "ssd"),
    "FastestDet": (detector_graphs.fastestdet, "fastestdet"),
    "YOLOv7 with suppression inside": (detector_graphs.yolov7_end_to_end, "box rows"),
    "torchvision": (detector_graphs.torchvision, "ssd"),
}


@pytest.mark.parametrize("rows", [-1, 1])
def test_single_box_has_no_row_if_counts_vary(rows: int) -> None:
    image, boxes = TensorSpec("images", "FP32", (1, 3, SIDE, SIDE)), TensorSpec("output", "FP32", (rows, 7))
    file, outputs = with_output_rows(ModelFile("m.onnx", "onnx", (image,), (boxes,)), {"output": np.ones((1, 7))})
    assert (file.without_rows, outputs["output"].shape) == ((("output",), (1, 1, 7)) if rows < 0 else ((), (1, 7)))


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_is_recognised_and_gives_the_known_object(tmp_path: Path, name: str) -> None:
    make, family = DETECTORS[name]
    path = make(tmp_path / "model.onnx")
    first = read(path)[0]
    assert (first.family, first.task) == (family, "detection")
    assert first.sure >= 0.7
    encoded = BytesIO()
    PICTURE.save(encoded, "PNG")
    task = Detection(labels=first.labels or COCO)
    if first.size != (SIDE, SIDE):  # TensorFlow's takes any size
        assert (name, first.size) == ("TensorFlow", (640, 640))
    found = detections(
        Trials(path, task, [{"image": object_array([encoded.getvalue()])}], RuntimeOptions()).outputs(first), 0
    )
    assert found.classes.tolist() == [LABEL]
    np.testing.assert_allclose(found.boxes, [BOX], atol=0.01)


@pytest.mark.parametrize(
    ("sides", "image", "message"),
    [
        (("rows", 3_000_000, 3_000_000), None, "too little memory for one row of model"),
        (
            ("rows", 3, 10_000, 7_000),
            Image.new("RGB", (8, 8)),
            "needs images of 7000x10000; at most 64,000,000 pixels are used",
        ),
    ],
)
def test_a_row_that_is_too_large_is_refused(
    tmp_path: Path, sides: tuple[str | int, ...], image: Image.Image | None, message: str
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, sides) for name in "xy")
    path = write_graph(tmp_path / "model.onnx", [helper.make_node("Identity", ["x"], ["y"])], [x], [y], [])
    with pytest.raises(InferenceError, match=message):
        trial_outputs(path, read_model_file(path), image)


def test_labels_come_from_the_exporters_metadata(tmp_path: Path) -> None:
    first = read(detector_graphs.yolov8_with_names(tmp_path / "model.onnx"))[0]
    assert (first.labels, first.size, first.sure) == (("cat", "dog", "owl"), (96, 96), SURE)


@pytest.mark.parametrize(
    "names", ["{0: 'cat'", "[1, 2", "{1: 'cat'}", "5", "(" * 5000, "{0: 'cat', 'a': 'dog'}", "{[]: 1}"]
)
def test_malformed_names_are_no_labels(tmp_path: Path, names: str) -> None:
    rows = detector_graphs.grid_rows(80, 1, objectness=False).T[None]
    path = detector_graphs.constant_outputs(
        tmp_path / "model.onnx", {"output0": rows}, metadata={**detector_graphs.NAMES, "names": names}
    )
    assert read(path)[0].labels == ()


def test_damaged_archive_in_a_model_has_no_labels(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "labels.zip", "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("labels.txt", "cat\n" * 500)
    archive = (tmp_path / "labels.zip").read_bytes().replace(zlib.compress(b"cat\n" * 500)[2:10], b"\xff" * 8)
    model = (Path(__file__).parents[4] / "models/digits/artefacts/edge.tflite").read_bytes()
    (tmp_path / "model.tflite").write_bytes(model + archive)
    assert read_model_file(tmp_path / "model.tflite").labels == ()


def test_folder_of_a_tokenizer_may_have_a_colon() -> None:
    ids, tokenizer = TensorSpec("input_ids", "INT64", (-1, -1)), Path("/run=1:2/tokenizer.json")
    file = ModelFile("m.onnx", "onnx", (ids,), (TensorSpec("logits", "FP32", (-1, 2)),))
    near = Surroundings("tensor", columns=("text",), texts=("text",), tokenizer=tokenizer, tokens=16)
    (reading, *_) = recognise(file, {"logits": np.array([[-1, 2]], np.float32)}, near)
    assert parse_preprocess(reading.feeds[0].steps)[1].file == tokenizer


@pytest.mark.parametrize("rate", ["²", "0", "9" * 5000])
def test_sample_rate_that_is_none_is_ignored(rate: str) -> None:
    samples = TensorSpec("samples", "FP32", (-1, 8000))
    file = ModelFile("m.onnx", "onnx", (samples,), (TensorSpec("p", "FP32", (-1, 2)),), metadata={"sample_rate": rate})
    found = recognise(file, {"p": np.array([[0.25, 0.75]], np.float32)}, Surroundings("audio", rates_hz=(8000,)))
    assert [reading.rate for reading in found] == ["8000"]


@pytest.mark.parametrize(
    ("outputs", "family", "postprocess"),
    [
        ({"probabilities": np.full((1, 10), 0.1, np.float32)}, "softmax classifier", ""),
        ({"logits": np.linspace(-3, 9, 10, dtype=np.float32)[None]}, "logits classifier", "softmax"),
        ({"logits": np.linspace(0, 0.14, 10, dtype=np.float32)[None]}, "logits classifier", "softmax"),
        ({"logits": np.linspace(-3, 9, 1000, dtype=np.float32).reshape(1, 1000, 1, 1)}, "logits classifier", "softmax"),
    ],
)
def test_a_classifier_is_recognised(tmp_path: Path, outputs: Any, family: str, postprocess: str) -> None:
    (found,) = read(detector_graphs.constant_outputs(tmp_path / "model.onnx", outputs))
    assert (found.family, found.task, found.postprocess, found.sure) == (family, "classification", postprocess, SURE)


@pytest.mark.parametrize(
    ("value_range", "step"),
    [
        ((-2.1179, 2.64), "scale:123.675/116.28/103.53:58.395/57.12/57.375"),
        ((-2.05, 2.55), "scale:123.675/116.28/103.53:58.395/57.12/57.375"),
        ((-1.0, 1.0), "scale:127.5:127.5"),
        ((0.0, 1.0), "scale:0:255"),
        ((-2.1179, 1.0), "scale:173.21:81.786"),
    ],
)
def test_the_range_of_a_quantised_input_gives_the_pixels(value_range: tuple[float, float], step: str) -> None:
    image, scores = TensorSpec("image", "FP32", (1, 3, 32, 32)), TensorSpec("scores", "FP32", (1, 10))
    (found,) = recognise(ModelFile("m.tflite", "tflite", (image,), (scores,), {"image": value_range}))
    assert found.preprocess == f"decode:RGB,resize:32x32,{step},layout:NCHW"
    assert not any(choice.field == "scaling" for choice in found.choices)


@pytest.mark.parametrize(
    ("channels", "mode", "step"),
    [
        (3, "BGR", "scale:103.53/116.28/123.675:57.375/57.12/58.395"),
        (1, "L", "scale:113.51:53.595"),  # the range of all colours together, as greyscale has no colours
    ],
)
def test_the_range_of_imagenet_goes_with_the_colours(channels: int, mode: str, step: str) -> None:
    image, scores = TensorSpec("image", "FP32", (1, channels, 32, 32)), TensorSpec("scores", "FP32", (1, 10))
    (found,) = recognise(ModelFile("m.tflite", "tflite", (image,), (scores,), {"image": (-2.1179, 2.64)}))
    assert replace(found, mode=mode).preprocess == f"decode:{mode},resize:32x32,{step},layout:NCHW"


@pytest.mark.parametrize(("runtime", "known"), [("tflite", False), ("onnx", True)])
def test_tflite_does_not_tell_whether_classes_are_cocos_ids(runtime: Any, known: bool) -> None:
    shapes = {"detection_boxes": (1, 10, 4), "detection_classes": (1, 10), "detection_scores": (1, 10), "count": (1,)}
    outputs = tuple(TensorSpec(name, "FP32", shape) for name, shape in shapes.items())
    image = TensorSpec("image", "FP32", (1, 300, 300, 3))
    found = recognise(ModelFile(f"m.{runtime}", runtime, (image,), outputs, {}))[0]
    assert next(choice.known for choice in found.choices if choice.field == "class_map") == known


def test_a_classifier_may_take_pixels_around_zero(tmp_path: Path) -> None:
    path = detector_graphs.constant_outputs(tmp_path / "model.onnx", {"logits": np.ones((1, 10), np.float32)})
    (found,) = read(path)
    scaling = next(choice for choice in found.choices if choice.field == "scaling")
    steps = {value: found.with_value(scaling, value).preprocess for value in scaling.values}
    assert "scale:127.5:255," in steps["centred"] and "scale:127.5:127.5," in steps["symmetric"]


@pytest.mark.parametrize(("classes", "family"), [(3, "table classifier"), (1, "regression")])
def test_a_sigmoid_of_a_hidden_layer_ends_no_model(tmp_path: Path, classes: int, family: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"]),
        helper.make_node("Sigmoid", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "v"], ["y"]),
    ]
    weights = {"w": np.eye(4, dtype=np.float32), "v": np.full((4, classes), 3, np.float32)}
    path = float_graph(tmp_path / "model.onnx", nodes, {"x": ["n", 4]}, {"y": ["n", classes]}, **weights)
    (found,) = read(path)
    assert found.family == family


def test_small_images_may_be_the_size_of_a_free_model() -> None:
    image, scores = TensorSpec("image", "FP32", (-1, 3, -1, -1)), TensorSpec("scores", "FP32", (-1, 10))
    file, fixed = ModelFile("m.onnx", "onnx", (image,), (scores,)), TensorSpec("image", "FP32", (-1, 3, 96, 96))

    def sizes(own: tuple[int, int] | None, described: ModelFile = file) -> list[tuple[str, ...]]:
        (found,) = recognise(described, near=Surroundings("image", image_size=own, label_counts=(10,)))
        return [choice.values for choice in found.choices if choice.field == "size"]

    assert sizes((32, 28)) == [("32x28", "224x224")]
    assert sizes(None) == sizes((640, 480)) == sizes((224, 224)) == []
    assert sizes((32, 28), replace(file, metadata={"imgsz": "[64, 64]"})) == []
    assert sizes((32, 28), replace(file, inputs=(fixed,))) == []
    (found,) = recognise(file, near=Surroundings("image", image_size=(32, 28), label_counts=(10,)))
    assert ",resize:32x28," in found.preprocess
    assert ",resize:224x224," in found.with_value(found.choices[0], "224x224").preprocess


def test_percentages_are_no_logits(tmp_path: Path) -> None:
    percent = {"scores": np.array([[12.5, 0, 87.49, 0.01]], np.float32)}
    assert read(detector_graphs.constant_outputs(tmp_path / "model.onnx", percent)) == []
    logits = {"scores": np.array([[12.5, 0, 87.49, 2]], np.float32)}
    assert read(detector_graphs.constant_outputs(tmp_path / "other.onnx", logits))[0].decoder == "softmax"


def test_labels_that_do_not_exclude_each_other_make_no_classifier(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["l"]), helper.make_node("Sigmoid", ["l"], ["probabilities"])]
    shapes = {"x": ["n", 4]}, {"probabilities": ["n", 3]}
    assert read(float_graph(tmp_path / "model.onnx", nodes, *shapes, w=np.eye(4, 3, dtype=np.float32))) == []


@pytest.mark.parametrize(
    "outputs",
    [
        {"embedding": np.ones((1, 64), np.float32), "logits": np.linspace(-3, 9, 10, dtype=np.float32)[None]},
        {"logits": np.linspace(-3, 9, 10, dtype=np.float32)[None], "age": np.ones((1, 1), np.float32)},
    ],
)
def test_the_output_of_the_classes_is_found_among_others(tmp_path: Path, outputs: Any) -> None:
    first = read(detector_graphs.constant_outputs(tmp_path / "model.onnx", outputs))[0]
    assert (first.family, first.output) == ("logits classifier", "logits")


@pytest.mark.parametrize(
    ("truth", "task"), [(Truth("numbers", 1), "classification"), (Truth("numbers", 10), "regression")]
)
def test_one_number_for_each_label_makes_no_regression_of_ten_values(tmp_path: Path, truth: Truth, task: str) -> None:
    outputs = {"output": np.linspace(-3, 9, 10, dtype=np.float32)[None]}
    path = detector_graphs.constant_outputs(tmp_path / "model.onnx", outputs)
    described = read_model_file(path)
    near = Surroundings("image", truth=truth)
    found = {one.task for one in recognise(described, trial_outputs(path, described, PICTURE), near)}
    assert (task in found, "regression" in found) == (True, task == "regression")


@pytest.mark.parametrize(
    ("outputs", "postprocess", "output"),
    [
        ({"map": np.zeros((1, 96, 96), np.int64)}, "", "map"),
        ({"logits": np.ones((1, 21, 24, 24), np.float32)}, "softmax,argmax:NCHW", "logits"),
        ({"shares": np.full((1, 96, 96, 4), 0.25, np.float32)}, "argmax", "shares"),
        (
            {"map": np.zeros((1, 96, 96), np.int64), "cell:scores": np.ones((1, 12, 12, 21), np.float32)},
            r"class_scores:cell\:scores",
            "map",
        ),
    ],
)
def test_a_segmentation_is_recognised(tmp_path: Path, outputs: Any, postprocess: str, output: str) -> None:
    (found,) = read(detector_graphs.constant_outputs(tmp_path / "model.onnx", outputs))
    assert (found.task, found.postprocess, found.output) == ("segmentation", postprocess, output)


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((1, 3, SIDE, SIDE), "autoencoder"),
        ((1, SIDE, SIDE, 3), "autoencoder"),
        ((1, 1, SIDE, SIDE), "autoencoder"),
        ((1, 4, SIDE, SIDE), "segmentation"),
    ],
)
def test_an_output_like_the_image_is_its_reconstruction(tmp_path: Path, shape: tuple[int, ...], first: str) -> None:
    taken = shape if first == "autoencoder" else (1, 3, SIDE, SIDE)
    path = detector_graphs.constant_outputs(
        tmp_path / "model.onnx", {"output": np.ones(shape, np.float32)}, shape=taken
    )
    picture = PICTURE.convert("L") if taken[1] == 1 else PICTURE
    described = read_model_file(path)
    raw = trial_outputs(path, described, picture)
    for truth in (Truth(), Truth("classes")):
        assert recognise(described, raw, Surroundings("image", truth=truth))[0].family == first
    if shape[1] == 3:  # as many labels as channels
        assert recognise(described, raw, Surroundings("image", label_counts={3}))[0].family == "segmentation"


def test_shares_of_three_classes_are_no_reconstruction(tmp_path: Path) -> None:
    shares = {"output": np.full((1, 3, SIDE, SIDE), 1 / 3, np.float32)}
    path = detector_graphs.constant_outputs(tmp_path / "model.onnx", shares, shape=(1, 3, SIDE, SIDE))
    assert read(path)[0].family == "segmentation"


def test_a_logarithm_of_the_spread_is_no_spread(tmp_path: Path) -> None:
    families = {}
    for name in ("sigma", "log_sigma"):
        outputs = {"value": np.ones((1, 1), np.float32), name: np.ones((1, 1), np.float32)}
        found = read(detector_graphs.constant_outputs(tmp_path / f"{name}.onnx", outputs))
        families[name] = [reading.family for reading in found]
    assert families == {"sigma": ["regression with a spread"], "log_sigma": []}


@pytest.mark.parametrize(
    "outputs",
    [
        {"landmarks": np.linspace(-25, 150, 1404, dtype=np.float32)[None]},
        {"contours": np.linspace(-25, 150, 213, dtype=np.float32)[None]},
    ],
)
def test_numbers_that_nothing_shows_to_be_classes_are_a_guess(tmp_path: Path, outputs: Any) -> None:
    (found,) = read(detector_graphs.constant_outputs(tmp_path / "model.onnx", outputs))
    assert found.sure < 0.5
    assert "nothing shows that they are classes" in found.assumptions[-1]


@pytest.mark.parametrize(
    "outputs",
    [
        {"regressors": np.ones((1, 896, 16), np.float32), "classificators": np.ones((1, 896, 1), np.float32)},
        {"boxes": np.ones((1, 1917, 4), np.float32), "scores": np.ones((1, 1917, 91), np.float32)},
        {"depth": np.ones((1, 1, 96, 96), np.float32)},
        {"rows": np.ones((5, 10), np.float32)},
    ],
)
def test_unknown_families_are_not_guessed(tmp_path: Path, outputs: Any) -> None:
    assert read(detector_graphs.constant_outputs(tmp_path / "model.onnx", outputs)) == []


@pytest.mark.parametrize(
    ("softmax", "family", "sure"), [(True, "table classifier", SURE), (False, "table classifier", 0.4)]
)
def test_a_classifier_of_columns_is_recognised(tmp_path: Path, softmax: bool, family: str, sure: float) -> None:
    (found,) = read(linear_model(tmp_path / "model.onnx", pixels=4, classes=3, softmax=softmax))
    assert (found.family, found.classes, found.sure, found.preprocess) == ("table classifier", 3, sure, "")
    assert found.postprocess == ("" if softmax else "softmax")
