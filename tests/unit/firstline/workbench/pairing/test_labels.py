"""The labels of a pair, and the steps from each model's own classes to them."""

from pathlib import Path
from typing import Any

import pytest

from firstline.workbench.pairing.labels import label, label_files
from firstline.workbench.recognition.reading import COCO, Choice, Reading
from firstline_core.errors import ConfigError

THREE = ("cat", "dog", "owl")


def _detector(**fields: Any) -> Reading:
    return Reading("yolo", "detection", 0.9, "images", **fields)


def _classifier(**fields: Any) -> Reading:
    return Reading("classifier", "classification", 0.9, "images", **fields)


def test_the_full_models_labels_come_first_and_the_edges_classes_become_them() -> None:
    edge = _detector(
        classes=4, labels=("dog", "???", "cat", "owl"), choices=(Choice("class_map", ("", "coco90"), False),)
    )
    found = label({"edge": edge, "full": _detector(classes=3, labels=THREE)}, (), {})
    assert found.labels == THREE
    assert found.readings["edge"].class_map == "1/-1/0/2"
    assert found.readings["edge"].choices == ()
    assert found.readings["full"].class_map == ""


def test_given_labels_win() -> None:
    assert label({"full": _detector(classes=3)}, THREE, {}).labels == THREE


def test_label_files_near_the_models_are_used_if_their_number_fits(tmp_path: Path) -> None:
    (tmp_path / "labels_90.txt").write_text("x\n" * 90)
    (tmp_path / "labels.txt").write_text("\n".join(THREE))
    nearby = label_files([tmp_path])
    assert label({"full": _detector(classes=3)}, (), nearby).labels == THREE
    assert label({"full": _classifier(classes=3)}, (), nearby).labels == THREE
    assert label({"full": _classifier(classes=2)}, (), nearby).labels == ("0", "1")


@pytest.mark.parametrize(("classes", "class_map"), [(80, ""), (90, "coco90"), (91, "coco91")])
def test_detectors_of_coco_have_its_labels(classes: int, class_map: str) -> None:
    found = label({"full": _detector(classes=classes)}, (), {})
    assert (found.labels, found.readings["full"].class_map) == (COCO, class_map)


@pytest.mark.parametrize(
    ("values", "expected"), [(("coco91", "", "coco90"), ("-1/0/1/2", "")), (("", "coco90", "coco91"), ("", "-1/0/1/2"))]
)
def test_other_labels_than_cocos_have_consecutive_numbers(values: tuple[str, ...], expected: tuple[str, ...]) -> None:
    ssd = _detector(class_map=values[0], choices=(Choice("class_map", values, known=False),))
    found = label({"full": ssd}, THREE, {}).readings["full"]
    assert (found.class_map, found.choices) == (expected[0], (Choice("class_map", expected, known=True),))
    assert Choice.meaning("-1/0/1/2") == "classes numbered from 1"
    respelled = (*COCO[:-1], "tooth brush")
    assert label({"full": ssd}, respelled, {}).readings["full"] == ssd


def test_as_many_labels_as_classes_leave_no_ids_of_coco() -> None:
    ninety = tuple(f"class {number}" for number in range(90))
    anchors = _detector(classes=90, class_map="coco90")
    assert label({"full": anchors}, ninety, {}).readings["full"].class_map == ""
    assert label({"full": anchors}, COCO, {}).readings["full"].class_map == "coco90"


def test_a_background_class_is_dropped() -> None:
    background = ("background", *THREE)
    found = label({"edge": _classifier(classes=4, decoder="softmax"), "full": _classifier(classes=3)}, background, {})
    assert (found.labels, found.readings["edge"].decoder) == (THREE, "softmax,label_offset:1")
    assert found.readings["full"].decoder == ""
    found = label({"full": _classifier(classes=4, decoder="softmax")}, background, {})
    assert (found.labels, found.readings["full"].decoder) == (THREE, "softmax,label_offset:1")


def test_data_tell_which_output_is_the_background() -> None:
    found = label({"full": _classifier(classes=4, decoder="softmax")}, THREE, {}).readings["full"]
    first, last = "softmax,label_offset:1", "softmax,columns:0/1/2"
    assert found.choices == (Choice("decoder", (first, last), known=False),)
    assert Choice.meaning(first) == "the first output is a background class"
    assert Choice.meaning(last) == "the last output is a background class"
    imagenet = tuple(f"class {number}" for number in range(1000))
    found = label({"full": _classifier(classes=1001)}, imagenet, {}).readings["full"]
    assert (found.decoder, found.choices) == ("label_offset:1", ())


@pytest.mark.parametrize(
    ("readings", "classes", "message"),
    [
        ({"full": _classifier(classes=5)}, THREE, "full model has 5 outputs and there are 3 labels"),
        ({"full": _detector(classes=5)}, THREE, "full model has 5 classes and there are 3 labels"),
        (
            {"edge": _detector(classes=3, labels=("a", "b", "c")), "full": _detector(classes=3, labels=THREE)},
            (),
            "edge model's own labels are a, b, c",
        ),
    ],
)
def test_other_classes_are_refused(readings: Any, classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        label(readings, classes, {})


def test_label_files_without_labels_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n")
    assert label_files([tmp_path]) == {}
    with pytest.raises(ConfigError, match="The number of classes is not known"):
        label({"full": Reading("map", "segmentation", 0.9, "images")}, (), label_files([tmp_path]))
