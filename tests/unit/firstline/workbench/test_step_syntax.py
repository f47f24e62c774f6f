from pathlib import Path

import pytest

from firstline.workbench.step_syntax import StepOfFile, parse_postprocess, parse_preprocess, spell
from firstline_core.errors import ConfigError
from firstline_core.processing import steps


def test_steps_of_an_image_classifier_are_parsed() -> None:
    text = "decode:RGB,center_crop:0.875,resize:224x192,scale:mean=127.5:std=64,layout:NCHW, flatten"
    assert parse_preprocess(text) == (
        steps.Decode(mode="RGB"),
        steps.CenterCrop(fraction=0.875),
        steps.Resize(width=224, height=192),
        steps.Scale(mean=(127.5,), std=(64.0,)),
        steps.Layout(to="NCHW"),
        steps.Flatten(),
    )
    assert parse_postprocess("softmax,label_offset:2") == (steps.Softmax(), steps.LabelOffset(offset=2))


def test_arguments_by_position_and_lists_are_parsed() -> None:
    assert parse_preprocess("scale:0.1/0.2/0.3:1/2/3") == (steps.Scale(mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)),)
    assert parse_preprocess("resize:8:nearest") == (steps.Resize(width=8, height=8, filter="nearest"),)
    assert parse_preprocess("resize:8:letterbox=corner:pad=114") == (steps.Resize(8, 8, letterbox="corner", pad=114),)
    assert parse_preprocess("decode,scale") == (steps.Decode(), steps.Scale(mean=(0.0,), std=(255.0,)))


def test_steps_of_a_detector_are_parsed() -> None:
    assert parse_postprocess("yolox,suppress:0.3:iou=0.5") == (steps.Yolox(), steps.Suppress(0.3, iou=0.5))
    assert parse_postprocess("yolo:objectness=true") == (steps.Yolo(objectness=True),)
    assert parse_postprocess(r"ssd:out\:3:out\:1:out\:0") == (steps.Ssd("out:3", "out:1", "out:0"),)
    xyxy = r"ssd:boxes:labels:scores:corners=xyxy:unit=pixels"
    assert parse_postprocess(xyxy) == (steps.Ssd("boxes", "labels", "scores", corners="xyxy", unit="pixels"),)
    assert spell(parse_postprocess(xyxy)) == xyxy
    assert spell((steps.Ssd("out:3", "out:1", "out:0"), steps.Suppress(0.5))) == (
        r"ssd:out\:3:out\:1:out\:0,suppress:0.5:iou=0.45:floor=0.01:limit=300"
    )


def test_category_ids_of_coco_become_its_80_classes() -> None:
    (by_id,) = parse_postprocess("class_map:coco91")
    (by_row,) = parse_postprocess("class_map:coco90")
    assert isinstance(by_id, steps.ClassMap) and isinstance(by_row, steps.ClassMap) and by_id.to == (-1, *by_row.to)
    assert [number for number in by_id.to if number >= 0] == list(range(80))
    assert spell((by_id, by_row)) == "class_map:coco91,class_map:coco90"
    assert [by_id.to[number] for number in (1, 11, 13, 25, 90)] == [0, 10, 11, 23, 79]


def test_empty_text_has_no_steps() -> None:
    assert parse_preprocess("") == ()
    assert parse_postprocess(" ") == ()


def test_graph_path_is_relative_to_the_folder(tmp_path: Path) -> None:
    (step,) = parse_preprocess("graph:a/b.onnx", tmp_path)
    assert isinstance(step, StepOfFile)
    assert (step.file, type(step.step)) == (tmp_path / "a/b.onnx", steps.Graph)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("softmax", "'softmax' is not a preprocessing step"),
        ("resize:8:letterbox=left", "'left' is not a letterbox; use one of center, corner"),
        ("resize:8:pad=114", "'pad' needs 'letterbox'"),
        ("resize:8:nearest:corner", "too many arguments"),
        ("decode:RGB:L", "too many arguments"),
        ("scale:middle=3", "takes no 'middle'"),
        ("scale:a/b", "needs a number for 'mean'"),
        ("flatten:2", "too many arguments"),
        ("resample:8000.5", "needs a whole number for 'rate_hz', not '8000.5'"),
        ("graph:", "graph:FILE.onnx"),
    ],
)
def test_invalid_step_is_named_with_its_spelling(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_preprocess(text)
    assert message in caught.value.message


def test_spelling_shows_defaults() -> None:
    assert (
        spell((steps.Decode(), steps.Resize(width=8, height=4), steps.Softmax()))
        == "decode:RGB,resize:8x4:bilinear,softmax"
    )
