import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.images import encode

from firstline.workbench.data import boxes
from firstline.workbench.data.dataset import open_dataset
from firstline_core.errors import ConfigError
from firstline_core.tasks.detection import Detection

PETS = Detection(("cat", "dog"), k=2)
COCO: dict[str, Any] = {
    "images": [{"id": 7, "file_name": "b.png", "width": 20, "height": 10}, {"id": 9, "file_name": "a.png"}],
    "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}],
    "annotations": [
        {"image_id": 7, "category_id": 18, "bbox": [1, 2, 10, 5.5], "iscrowd": 0},
        {"image_id": 7, "category_id": 17, "bbox": [0, 0, 4, 4]},
        {"image_id": 7, "category_id": 17, "bbox": [0, 0, 20, 10], "iscrowd": 1},
    ],
}


def _images(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        (folder / "images" / name).write_bytes(encode(np.zeros((10, 20, 3), np.uint8)))
    return folder


@pytest.mark.parametrize(
    "place",
    ["annotations.json", "_annotations.coco.json", "annotations/instances_val.json", "annotations/annotations.json"],
)
def test_coco_boxes_are_the_truth_of_a_detector(tmp_path: Path, place: str) -> None:
    folder = _images(tmp_path)
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text(json.dumps(COCO))
    for path in (folder, folder / place):
        found = open_dataset(path)
        truth = found.required_truth(PETS)
        assert [sample.file for sample in found.samples] == ["b.png", "a.png"]
        assert truth["count"].tolist() == [2, 0]
        assert truth["boxes"].tolist() == [[[1, 2, 11, 7.5], [0, 0, 4, 4]], [[0, 0, 0, 0]] * 2]
        assert truth["classes"].tolist() == [[1, 0], [-1, -1]]
        assert len(list(found.contents())) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [{"image_id": 7, "category_id": 17, "bbox": [0, 0, 1]}]}, r"not in COCO's form .*bbox"),
        (
            {"images": [{"id": 7, "file_name": "../b.png"}], "annotations": []},
            "names '../b.png', which is outside of the data",
        ),
        ({"images": [{"id": 7, "file_name": "a"}, {"id": 8, "file_name": "a"}], "annotations": []}, "more than once"),
        (
            {"images": [{"id": 7, "file_name": "a.png"}, {"id": 7, "file_name": "b.png"}]},
            r"annotations\.json gives the id 7 to several images",
        ),
        (
            {"categories": [{"id": "x", "name": "cat"}, {"id": "x", "name": "dog"}], "annotations": []},
            r"annotations\.json gives the id 'x' to several categories",
        ),
        ({"images": [], "annotations": []}, "holds no images"),
        (
            {"images": [{"id": 7, "file_name": "b.png", "width": 10, "height": 20}]},
            "states 10x20 pixels for 'b.png', but the upright image has 20x10; give the image",
        ),
    ],
)
def test_wrong_coco_file_is_explained(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (_images(tmp_path) / "annotations.json").write_text(json.dumps(COCO | change))
    with pytest.raises(ConfigError, match=message):
        open_dataset(tmp_path).truth(PETS)


def test_several_files_of_boxes_are_not_guessed(tmp_path: Path) -> None:
    for name in ("instances_train.json", "instances_val.json"):
        (tmp_path / name).write_text(json.dumps(COCO))
    with pytest.raises(ConfigError, match=r"several files of boxes: .*instances_train\.json.*; name one of them"):
        open_dataset(tmp_path)


def test_large_coco_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "COCO_LIMIT_BYTES", 10)
    (_images(tmp_path) / "annotations.json").write_text(json.dumps(COCO))
    with pytest.raises(ConfigError, match=r"annotations\.json cannot be read"):
        open_dataset(tmp_path)


def test_yolo_text_is_the_truth_of_a_detector(tmp_path: Path) -> None:
    folder = _images(tmp_path)
    (folder / "labels").mkdir()
    (folder / "labels" / "b.txt").write_text("1 0.5 0.5 0.5 0.4\n\n0 0.1 0.1 0.2 0.2\n")
    truth = open_dataset(folder).required_truth(PETS)
    assert truth["count"].tolist() == [0, 2]
    np.testing.assert_allclose(truth["boxes"][1], [[5, 3, 15, 7], [0, 0, 4, 2]], atol=1e-5)
    assert truth["classes"].tolist() == [[-1, -1], [1, 0]]


def test_boxes_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    folder = _images(tmp_path)
    (folder / "labels").mkdir()
    (folder / "labels" / "b.txt").write_text("1 0.5 0.5 0.5 0.4\n", encoding="utf-8-sig")
    assert open_dataset(folder).required_truth(PETS)["count"].tolist() == [0, 1]
    (folder / "annotations.json").write_text(json.dumps(COCO), encoding="utf-8-sig")
    assert open_dataset(folder).required_truth(PETS)["count"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1 0.5 0.5 0.5", "has 3 numbers after the class; write 4"),
        ("0000000009 0.5 0.5 0.5 0.4", "has the class 0000000009, but the bundle's labels are 0 or 1"),
        ("1 nan 0.5 0.5 0.4", "has 'nan', which is not a fraction"),
        ("0 0.5 0.5 -0.5 0.4", "has '-0.5', which is not a fraction"),
    ],
)
def test_line_that_is_not_a_box_is_named(tmp_path: Path, line: str, fault: str) -> None:
    folder = _images(tmp_path)
    (folder / "labels").mkdir()
    (folder / "labels" / "a.txt").write_text(f"0 0.5 0.5 0.5 0.4\n{line}\n")
    with pytest.raises(ConfigError, match=rf"labels/a\.txt:2 {fault}"):
        open_dataset(folder).truth(PETS)


def test_data_without_boxes_says_what_is_expected(tmp_path: Path) -> None:
    found = open_dataset(_images(tmp_path))
    assert found.truth(PETS) is None
    with pytest.raises(ConfigError, match=r"has no labelled boxes; give COCO JSON .* or labels/STEM\.txt"):
        found.required_truth(PETS)
