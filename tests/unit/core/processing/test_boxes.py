"""Decoders of detectors, suppression and the canonical outputs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.processing.boxes import Boxes, anchors, compile_detection, suppress
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import (
    Anchors,
    BoxDecoder,
    BoxRows,
    ClassMap,
    Detr,
    FastestDet,
    PostStep,
    Ssd,
    Suppress,
    Yolo,
    Yolox,
)
from firstline_core.types import Array

SIZE = InputSize(64, 32)
SAME = np.array([[64, 32, 1, 1, 0, 0]], np.float32)
"""The geometry of an image that is as large as the model's input."""

COORDINATE = st.integers(0, 8)


def run(*steps: PostStep, geometry: Array = SAME, k: int = 4, **raw: Any) -> dict[str, Array]:
    arrays = {name: np.asarray(values, np.float32)[None] for name, values in raw.items()}
    return compile_detection(steps, SIZE, k)(arrays, geometry)


def found(outputs: dict[str, Array]) -> list[Any]:
    """The detections of the only row: (box, score, class)."""
    count = outputs["count"][0]
    columns = (outputs[name][0, :count] for name in ("boxes", "scores", "classes"))
    return [(box.tolist(), round(float(score), 4), int(label)) for box, score, label in zip(*columns, strict=True)]


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def yolox_output() -> Array:
    values = np.zeros((8 + 2, 5 + 3), np.float32)  # 4x2 cells of 16 pixels, 2x1 cells of 32
    values[6] = [0.5, 0.5, np.log(0.5), np.log(0.25), 0.8, 0.1, 0.9, 0.2]  # column 2, row 1
    values[9] = [0, 0.5, 0, 0, 0.5, 0, 0, 0.8]  # column 1, row 0
    return values


GRIDS = Anchors("offsets", "scores", strides=(32, 64), ratios=(1,))
"""Two cells of 32 pixels with three anchors each, and one cell of 64 with two."""


def anchors_output() -> dict[str, Array]:
    offsets, scores = np.zeros((8, 4), np.float32), np.full((8, 4), logit(0.001), np.float32)
    offsets[3] = [5, -10, 5 * np.log(2), 0]  # the first anchor of the second cell: 0.1 of the height
    scores[3, 2] = logit(0.9)
    scores[6, [0, 3]] = [
        logit(0.95),
        logit(0.7),
    ]  # the cell of 64 pixels: 0.95 of the height; class 0 is the background
    return {"offsets": offsets, "scores": scores}


def fastestdet_output() -> Array:
    values = np.zeros((5 + 2, 2, 4), np.float32)  # 4x2 cells of 16 pixels
    values[:, 1, 2] = [0.81, np.arctanh(0.5), np.arctanh(0.5), logit(0.125), logit(0.125), 0.2, 0.6]
    return values


DECODED: dict[str, tuple[BoxDecoder, dict[str, Any], list[Any]]] = {
    "YOLOX": (Yolox((16, 32)), {"output": yolox_output()}, [([36, 22, 44, 26], 0.72, 1), ([16, 0, 48, 32], 0.4, 2)]),
    "FastestDet": (FastestDet(), {"758": fastestdet_output()}, [([36, 22, 44, 26], round(0.81**0.6 * 0.6**0.4, 4), 1)]),
    "YOLOv5": (
        Yolo(objectness=True),
        {"output0": [[10, 10, 8, 4, 0.5, 0.2, 0.9], *[[0] * 7] * 9]},
        [([6, 8, 14, 12], 0.45, 1)],
    ),
    "YOLOv8": (
        Yolo(),
        {"output0": np.array([[10, 10, 8, 4, 0.2, 0.9, 0], *[[0] * 7] * 9]).T},
        [([6, 8, 14, 12], 0.9, 1)],
    ),
    "YOLO11 in fractions": (
        Yolo(unit="fractions"),
        {"output0": np.array([[0.5, 0.5, 0.25, 0.25, 0.2, 0.9], *[[0] * 6] * 9]).T},
        [([24, 12, 40, 20], 0.9, 1)],
    ),
    "DETR": (
        Detr("logits", "boxes"),
        {"logits": [np.log([0.1, 0.7, 0.2]), np.log([0.05, 0.05, 0.9])], "boxes": [[0.5, 0.5, 0.25, 0.25], [0] * 4]},
        [([24, 12, 40, 20], 0.7, 1)],
    ),
    "RT-DETR": (
        Detr("logits", "boxes", "sigmoid"),
        {"logits": [[logit(0.1), logit(0.7)]], "boxes": [[0.5, 0.5, 0.25, 0.25]]},
        [([24, 12, 40, 20], 0.7, 1)],
    ),
    "SSD": (
        Ssd("boxes", "classes", "scores", "count"),
        {"boxes": [[-0.5, 0.25, 0.5, 0.75], [0, 0, 1, 1]], "classes": [2, 1], "scores": [0.9, 0.8], "count": 1},
        [([16, 0, 48, 16], 0.9, 2)],
    ),
    "SSD by the order of its outputs": (
        Ssd(),
        {"a": [[0, 0, 1, 1], [0, 0, 1, 1]], "b": [2, 1], "c": [0.9, 0]},
        [([0, 0, 64, 32], 0.9, 2)],
    ),
    "SSD without suppression inside": (
        GRIDS,
        anchors_output(),
        [([43.2, 14.4, 46.4, 20.8], 0.9, 1), ([16.8, 0.8, 47.2, 31.2], 0.7, 2)],
    ),
    "rows": (
        BoxRows(),
        {"output0": [[1, 2, 30, 20, 0.5, 7], [0] * 6, [1, 2, 30, 20, 0.9, 7]]},
        [([1, 2, 30, 20], 0.9, 7), ([1, 2, 30, 20], 0.5, 7)],
    ),
}


@pytest.mark.parametrize("name", DECODED)
def test_decoder(name: str) -> None:
    decoder, raw, expected = DECODED[name]
    outputs = run(decoder, Suppress(0.3, iou=1), **raw)
    assert [(label, score) for _, score, label in found(outputs)] == [(label, score) for _, score, label in expected]
    np.testing.assert_allclose([box for box, *_ in found(outputs)], [box for box, *_ in expected], atol=1e-3)


def test_outputs_are_padded_and_have_the_declared_types() -> None:
    outputs = run(BoxRows(), Suppress(0.6), k=3, raw=[[0, 0, 9, 9, 0.9, 1], [20, 0, 29, 9, 0.5, 1]])
    assert {name: (array.dtype.str, array.shape) for name, array in outputs.items()} == {
        "count": ("<i8", (1,)),
        "boxes": ("<f4", (1, 3, 4)),
        "scores": ("<f4", (1, 3)),
        "classes": ("<i8", (1, 3)),
        "candidate_boxes": ("<f4", (1, 3, 4)),
        "candidate_scores": ("<f4", (1, 3)),
        "candidate_classes": ("<i8", (1, 3)),
    }
    assert outputs["count"].tolist() == [1]
    assert outputs["classes"].tolist() == [[1, -1, -1]]
    assert not outputs["boxes"][0, 1:].any() and not outputs["scores"][0, 1:].any()
    assert outputs["candidate_boxes"][0, 0].tolist() == [20, 0, 29, 9]
    assert outputs["candidate_classes"].tolist() == [[1, -1, -1]]


def test_only_the_best_boxes_fit() -> None:
    rows = [[x, 0, x + 5, 5, 0.5 + x / 100, 0] for x in range(0, 40, 10)]
    outputs = run(BoxRows(), Suppress(0.5), k=2, raw=rows)
    assert [score for _, score, _ in found(outputs)] == [0.8, 0.7]


def test_boxes_are_mapped_to_the_original_and_clipped() -> None:
    geometry = np.array([[100, 50, 0.5, 0.5, 0, 4]], np.float32)
    rows = [[-5, 0, 20, 14, 0.9, 0], [10, 9, 60, 40, 0.8, 1], [52, 5, 60, 9, 0.7, 2]]
    outputs = run(BoxRows(), Suppress(0.5), geometry=geometry, raw=rows)
    # The third lies in the padding.
    assert found(outputs) == [([0, 0, 40, 20], 0.9, 0), ([20, 10, 100, 50], 0.8, 1)]


def test_the_best_box_is_a_candidate_whatever_its_score() -> None:
    values = np.zeros((10, 6), np.float32)
    values[3] = [10, 10, 8, 4, 0.002, 0.001]
    outputs = run(Yolo(), Suppress(0.3, floor=0.01), raw=values)
    assert outputs["count"].tolist() == [0]
    np.testing.assert_allclose(outputs["candidate_scores"], [[0.002, 0, 0, 0]])


def test_detections_may_be_below_the_floor_of_candidates() -> None:
    rows = [[0, 0, 9, 9, 0.5, 0], [20, 0, 29, 9, 0.006, 1], [40, 0, 49, 9, 0.002, 1]]
    outputs = run(BoxRows(), Suppress(0.004), raw=rows)
    assert [score for _, score, _ in found(outputs)] == [0.5, 0.006] and not outputs["candidate_scores"].any()


def test_an_empty_answer_has_no_candidate() -> None:
    outputs = run(BoxRows(), Suppress(0.3), raw=np.zeros((0, 6)))
    assert outputs["count"].tolist() == [0] and outputs["candidate_classes"].max() == -1


def test_classes_are_renumbered() -> None:
    mapping = ClassMap((1, -1, 0))
    rows = [[0, 0, 5, 5, 0.9, 0], [10, 0, 15, 5, 0.8, 1], [20, 0, 25, 5, 0.7, 2]]
    outputs = run(BoxRows(), mapping, Suppress(0.5), raw=rows)
    assert [label for *_, label in found(outputs)] == [1, 0]


@pytest.mark.parametrize(
    ("steps", "raw", "message"),
    [
        ([Yolox()], {"output": np.zeros((9, 8))}, r"has 42 cells for 64x32 pixels, but the model gave 9"),
        ([BoxRows()], {"output": np.zeros((9, 7))}, "rows of 6 numbers, but the model gave 7"),
        ([BoxRows()], {"output": np.zeros((9, 7, 1))}, "needs 2 axes"),
        ([BoxRows()], {"output": [[0, 0, 5, 5, np.nan, 0]]}, "Output 'output' has NaN or infinity"),
        ([BoxRows(), ClassMap((0,))], {"output": [[0, 0, 5, 5, 1, 1]]}, "a class outside of 0 to 0"),
        ([Detr("logits", "boxes")], {"logits": [[0, 0]]}, "no output 'boxes'; it has: logits"),
        ([Detr("logits", "boxes")], {"logits": [[0]], "boxes": [[0] * 4]}, "has 1 columns; .* needs at least 2"),
        ([Detr("logits", "boxes")], {"logits": [[0, 0]], "boxes": [[0] * 5]}, r"'boxes' has shape \[1, 5\]"),
        ([Detr("logits", "boxes")], {"logits": [[0, 0]] * 2, "boxes": [[0] * 4]}, "the 2 boxes of 'logits'"),
        ([Ssd()], {"a": [[0] * 4], "b": [1, 1], "c": [0.9]}, "'b' and 'c' have 2 and 1 boxes"),
        ([Ssd()], {"a": [[0] * 3], "b": [1], "c": [0.9]}, r"'a' has shape \[1, 3\]"),
        ([GRIDS], {"offsets": np.zeros((9, 4)), "scores": np.zeros((9, 4))}, "has 8 anchors, but the model gave 9"),
        ([GRIDS], {"offsets": np.zeros((8, 4)), "scores": np.zeros((8, 1))}, "has 1 columns; .* needs at least 2"),
        ([Yolo(objectness=True)], {"output": np.zeros((9, 5))}, "has 5 columns; this decoder needs at least 6"),
        ([Yolo()], {"output": np.zeros((4, 9))}, "has 4 columns; this decoder needs at least 5"),
        ([Yolox((16, 32))], {"output": np.zeros((10, 4))}, "has 4 columns; this decoder needs at least 6"),
        ([Yolox((16, 32))], {"output": np.zeros((10, 5))}, "has 5 columns; this decoder needs at least 6"),
        ([FastestDet()], {"output": np.zeros((5, 2, 4))}, "has 5 columns; this decoder needs at least 6"),
    ],
)
def test_outputs_that_do_not_fit_are_errors(steps: list[PostStep], raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        run(*steps, Suppress(0.3), **raw)


@pytest.mark.parametrize("shape", [(), (1, 3, 6), (3, 3, 6)])
def test_outputs_have_one_row_for_each_image(shape: tuple[int, ...]) -> None:
    detect = compile_detection([BoxRows(), Suppress(0.3)], SIZE, 4)
    with pytest.raises(
        InferenceError, match=r"'raw' has shape \[.*\] for 2 rows; export the model with a dynamic first"
    ):
        detect({"raw": np.zeros(shape, np.float32)}, np.repeat(SAME, 2, axis=0))


def test_padding_is_no_candidate_whatever_its_class() -> None:
    rows = [[1, 2, 30, 20, 0.2, 0], [0, 0, 9, 9, 0, -1], [0, 0, 9, 9, -1, 5]]
    outputs = run(BoxRows(), ClassMap((1,)), Suppress(0.3, floor=0), raw=rows)
    assert outputs["count"].tolist() == [0]
    assert outputs["candidate_classes"].tolist() == [[1, -1, -1, -1]]


@pytest.mark.parametrize(("count", "boxes"), [(-1, 0), (0, 0), (1, 1), (9, 2)])
def test_the_count_of_an_ssd_is_no_index(count: int, boxes: int) -> None:
    raw = {"boxes": [[0, 0, 1, 1]] * 2, "classes": [2, 1], "scores": [0.9, 0.8], "count": count}
    outputs = run(Ssd("boxes", "classes", "scores", "count"), Suppress(0.3, iou=1), **raw)
    assert outputs["count"].tolist() == [boxes]


def test_corners_of_an_ssd_may_be_left_top_right_bottom_in_pixels() -> None:
    raw = {"boxes": [[1, 2, 30, 20]], "classes": [2], "scores": [0.9]}
    step = Ssd("boxes", "classes", "scores", corners="xyxy", unit="pixels")
    assert run(step, Suppress(0.3, iou=1), **raw)["boxes"][0, 0].tolist() == [1, 2, 30, 20]


def test_anchors_of_a_wide_input_are_as_high_as_tensorflows() -> None:
    step = Anchors("offsets", "scores", strides=(320, 640), least=0.2, most=0.8, ratios=(1, 4), lowest=0)
    found = anchors(step, InputSize(640, 320))
    in_pixels = found[:, 2:] * (640, 320)
    np.testing.assert_allclose(in_pixels[:3], [[64, 64], [128, 32], [128, 128]], rtol=1e-6)
    np.testing.assert_allclose(in_pixels[6:8], [[256, 256], [512, 128]], rtol=1e-6)
    np.testing.assert_allclose(found[[0, 3, 6], :2], [[0.25, 0.5], [0.75, 0.5], [0.5, 0.5]])


def test_a_cell_below_0_has_no_score() -> None:
    values = fastestdet_output()
    values[0, 0, 0] = values[6, 0, 1] = -0.01
    values[0, 0, 1] = values[6, 0, 0] = 0.5
    outputs = run(FastestDet(), Suppress(0.3, floor=0), k=8, raw=values)
    assert outputs["count"].tolist() == [1] and not outputs["candidate_scores"].any()


@pytest.mark.parametrize(
    "steps", [[], [Yolox()], [Suppress(0.3), Yolox()], [Yolox(), Suppress(0.3), ClassMap((0,))]], ids=str
)
def test_steps_have_one_order(steps: list[PostStep]) -> None:
    with pytest.raises(ModelLoadError, match="a decoder comes first, then class_map, then suppress"):
        compile_detection(steps, SIZE, 4)


@st.composite
def boxes(draw: st.DrawFn) -> Boxes:
    """Boxes on a small grid with few different scores, so that they overlap and tie."""
    rows = draw(st.lists(st.tuples(COORDINATE, COORDINATE, COORDINATE, COORDINATE), max_size=12))
    corners = np.array([(x, y, x + w, y + h) for x, y, w, h in rows], np.float32).reshape(-1, 4)
    scores = draw(st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=len(rows), max_size=len(rows)))
    classes = draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows)))
    return Boxes(corners, np.array(scores, np.float32), np.array(classes, np.int64))


def plainly(detected: Boxes, iou: float, limit: int) -> list[Any]:
    """Suppression as the textbook states it, among the best ones, whatever their order was."""
    kept: list[Any] = []
    best = sorted(listed(detected), key=lambda row: (-row[1], row[2], row[0]))[:limit]
    for (x1, y1, x2, y2), score, label in best:
        for (a1, b1, a2, b2), _, other in kept:
            shared = max(0, min(x2, a2) - max(x1, a1)) * max(0, min(y2, b2) - max(y1, b1))
            union = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - shared
            if label == other and union and np.float32(shared) / np.float32(union) > iou:
                break
        else:
            kept.append(([x1, y1, x2, y2], score, label))
    return kept


def listed(detected: Boxes) -> list[Any]:
    return [tuple(row) for row in zip(*(values.tolist() for values in detected), strict=True)]


@given(boxes(), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(1, 12))
def test_suppression_is_the_greedy_one(detected: Boxes, iou: float, limit: int) -> None:
    assert listed(suppress(detected, iou, limit)) == plainly(detected, iou, limit)
