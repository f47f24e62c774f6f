"""Scores, losses and events of detectors."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError
from firstline_core.tasks.base import check_outputs
from firstline_core.tasks.detection import Detection
from firstline_core.types import Array, slice_rows

LABELS = ("person", "car", "truck")
TASK = Detection(LABELS, k=4)
PERSON = (0, 0, 100, 100)
Found = tuple[Sequence[float], float, int]
"""Box, score and class."""


def outputs(*rows: Sequence[Found], k: int = 4, prefix: str = "", count: bool = True) -> dict[str, Array]:
    """The canonical outputs of these rows."""
    arrays: dict[str, Array] = {
        f"{prefix}boxes": np.zeros((len(rows), k, 4), np.float32),
        f"{prefix}scores": np.zeros((len(rows), k), np.float32),
        f"{prefix}classes": np.full((len(rows), k), -1, np.int64),
    }
    for number, row in enumerate(rows):
        for index, found in enumerate(row):
            for array, value in zip(arrays.values(), found, strict=True):
                array[number, index] = value
    return arrays | ({"count": np.array([len(row) for row in rows], np.int64)} if count else {})


def candidates(*rows: Sequence[Found]) -> dict[str, Array]:
    return outputs(*rows, prefix="candidate_", count=False)


def one(box: Sequence[float] = PERSON, label: int = 0, score: float = 0.9) -> list[Found]:
    return [(box, score, label)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("minimum_confidence", [0.6, 0.7, 0, 0.9]),
        ("mean_confidence", [0.75, 0.7, 0, 0.9]),
        ("no_candidate", [0.8, 0.7, 0, 1]),
        ("product", [0.6 * 0.9 * 0.8, 0.7 * 0.9, 0, 0.9]),
    ],
)
def test_every_score_is_defined_for_frames_without_boxes(kind: str, expected: list[float]) -> None:
    found = outputs([(PERSON, 0.9, 0), (PERSON, 0.6, 1)], [], [], one())
    evidence = candidates(one(score=0.2), [(PERSON, 0.3, 0), (PERSON, 0.1, 1)], [], [])
    score = TASK.score(kind, found, evidence)
    assert score.dtype == np.float32
    np.testing.assert_allclose(score, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", Detection.score_kinds)
def test_a_score_needs_candidates(kind: str) -> None:
    with pytest.raises(InvalidTensorError, match="need candidates"):
        TASK.score(kind, outputs([]), {})


def test_features_are_finite_and_have_the_declared_number() -> None:
    found, evidence = outputs(one(score=1.0), []), candidates([], one(score=1.0))
    features = TASK.features(found, evidence)
    assert features.shape == (2, TASK.feature_count) and features.dtype == np.float32
    assert np.isfinite(features).all()
    assert features[:, -3:].tolist() == [[1, 0, 0], [0, 0, 0]]


SHIFTED = {
    "the same box": (PERSON, 0),
    "an overlap of 0.6": ((25, 0, 125, 100), 0),
    "an overlap of 0.33": ((50, 0, 150, 100), 1),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_boxes_match_from_an_overlap_of_half(name: str) -> None:
    box, loss = SHIFTED[name]
    assert TASK.loss(outputs(one(box)), outputs(one())).tolist() == [loss]


@pytest.mark.parametrize(("side", "loss"), [(31, 0), (33, 1)])
def test_small_objects_match_from_a_smaller_overlap(side: int, loss: int) -> None:
    edge, full = one((side / 2, 0, side * 1.5, side)), one((0, 0, side, side))
    assert TASK.loss(outputs(edge), outputs(full)).tolist() == [loss]


def test_losses_have_a_direction_and_a_condition() -> None:
    full = outputs(one(), one(), [], [], one(label=1))
    edge = outputs(one(), [], one(), [], one(label=1))
    assert TASK.loss(edge, full).tolist() == [0, 1, 1, 0, 0]
    missed, invented = TASK.events_of(["missed person", "invented person"], edge, full).values()
    assert missed.counts.tolist() == [True, True, False, False, False]
    assert missed.loss.tolist() == [0, 1, 0, 0, 0]
    assert invented.counts.tolist() == [True, False, True, False, False]
    assert invented.loss.tolist() == [0, 0, 1, 0, 0]


def test_a_blind_detector_misses_every_object_of_the_frames_that_count() -> None:
    frames = [one()] * 71 + [[]] * 2429
    blind, full = outputs(*[[]] * 2500), outputs(*frames)
    assert TASK.loss(blind, full).mean() < 0.03
    missed = TASK.events_of(["missed person"], blind, full)["missed person"]
    assert missed.counts.sum() == 71 and missed.loss[missed.counts].mean() == 1
    assert not TASK.events_of(["invented person"], blind, full)["invented person"].counts.any()


def test_the_events_of_many_classes_take_one_comparison() -> None:
    task = Detection(tuple(f"class {number}" for number in range(80)), k=4)
    edge, full = (outputs(*[one(label=row % labels) for row in range(100)]) for labels in (79, 80))
    task.loss(edge, full)
    begin_s = time.process_time()
    task.loss(edge, full)
    loss_s = time.process_time() - begin_s
    found = task.events_of(task.events, edge, full)
    assert time.process_time() - begin_s < 20 * loss_s  # one comparison for each event takes 160 times as long
    assert tuple(found) == task.events and found["missed class 79"].loss.sum() == 1


def test_a_second_object_needs_a_second_box() -> None:
    crowd = outputs([(PERSON, 0.9, 0), ((5, 5, 100, 100), 0.8, 0)])
    objects = TASK.objects(outputs(one()), crowd)
    assert [counts[0, 0] for counts in objects] == [1, 1, 0]
    assert TASK.events_of(["missed person"], outputs(one()), crowd)["missed person"].loss.tolist() == [1]


def test_labels_of_a_group_are_not_told_apart() -> None:
    task = Detection(LABELS, k=4, class_groups={"vehicle": ("car", "truck")})
    assert task.events == ("missed person", "invented person", "missed vehicle", "invented vehicle")
    car, truck = outputs(one(label=1)), outputs(one(label=2))
    assert task.loss(car, truck).tolist() == [0] and TASK.loss(car, truck).tolist() == [1]
    assert task.occurrences(truck).tolist() == [[0, 1]]
    with pytest.raises(ConfigError, match="no event 'missed car'; use one of missed person"):
        task.events_of(["missed car"], car, truck)


def test_objects_below_the_least_side_do_not_count() -> None:
    task = Detection(LABELS, k=4, least_side=20)
    small, empty = outputs(one((0, 0, 19, 19))), outputs([])
    for edge, full in ((empty, small), (small, empty)):
        assert task.loss(edge, full).tolist() == [0]
    assert not task.events_of(["missed person"], empty, small)["missed person"].counts.any()
    # It may still match an object that counts.
    assert task.loss(outputs(one((0, 0, 21, 21))), small).tolist() == [0]


BOX = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 6), st.integers(1, 6))
ROW = st.lists(
    st.builds(
        lambda box, label, score: ((box[0], box[1], box[0] + box[2], box[1] + box[3]), score, label),
        BOX,
        st.integers(0, 2),
        st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    ),
    max_size=4,
).map(lambda row: sorted(row, key=lambda found: -found[1]))


@given(ROW, ROW)
def test_counts_of_objects_add_up(edge: list[Found], full: list[Found]) -> None:
    ours, theirs = outputs(edge), outputs(full)
    objects = TASK.objects(ours, theirs)
    assert (objects.found + objects.missed).sum() == len(full)
    assert (objects.found + objects.invented).sum() == len(edge)
    events = TASK.events_of(TASK.events, ours, theirs).values()
    assert TASK.loss(ours, theirs)[0] == max(event.loss[0] for event in events)
    assert all(event.counts[0] or not event.loss[0] for event in events)
    assert TASK.loss(ours, ours).tolist() == [0]


Change = Callable[[dict[str, Array]], Any]
BROKEN: dict[str, tuple[Change, str]] = {
    "no count": (lambda o: o.pop("count"), "'count' is nothing"),
    "other dtype": (lambda o: o.update(classes=o["classes"].astype(np.int32)), "'classes' is int32"),
    "count": (lambda o: o["count"].fill(5), "a count outside of 0 to 4"),
    "score": (lambda o: o["scores"].__setitem__((0, 0), 1.5), "scores outside of 0 to 1"),
    "NaN": (lambda o: o["scores"].__setitem__((0, 0), np.nan), "scores outside of 0 to 1, or NaN"),
    "infinite box": (lambda o: o["boxes"].__setitem__((0, 0, 2), np.inf), "or NaN or infinity"),
    "inverted box": (lambda o: o["boxes"].__setitem__((0, 0, 2), -1), "boxes that end before they begin"),
    "class": (lambda o: o["classes"].__setitem__((0, 0), 3), "classes outside of 0 to 2"),
    "padding": (lambda o: o["classes"].__setitem__((0, 3), 0), "padding that is not -1"),
    "score of padding": (lambda o: o["scores"].__setitem__((0, 3), 0.1), "padding that is not 0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_impossible_outputs_are_refused(name: str) -> None:
    change, message = BROKEN[name]
    found = outputs(one())
    check_outputs(TASK.declared(rounded=False, cut=False), found, 1)
    change(found)
    with pytest.raises(InferenceError, match=message):
        check_outputs(TASK.declared(rounded=False, cut=False), found, 1)


def test_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(InferenceError, match=r"'boxes' is float32 \[1, 4, 4\], expected float32 \[2, 4, 4\]"):
        check_outputs(TASK.declared(rounded=False, cut=False), outputs(one()), 2)


def test_golden_answers_may_differ_by_the_tolerance() -> None:
    a = outputs(one(), one(), one(), [])
    b = outputs(one(score=0.895), one((3, 0, 103, 100)), one(label=1), one())
    near = [TASK.difference(*(slice_rows(each, row, row + 1) for each in (a, b))) <= 0.01 for row in range(4)]
    assert near == [True, False, False, False]
    assert (TASK.difference(a, a), TASK.difference(a, b)) == (0, float("inf"))
    assert TASK.difference(outputs(one()), outputs(one(score=0.8))) == pytest.approx(0.1, abs=1e-6)


def test_a_detection_may_be_a_candidate_of_another_runtime() -> None:
    above = outputs(one(score=0.501)) | candidates([])
    below = outputs([]) | candidates(one(score=0.499))
    assert TASK.difference(above, below) <= 0.01 and TASK.difference(below, above) <= 0.01


def test_the_summary_is_the_average_precision_of_detections_and_candidates() -> None:
    pytest.importorskip("pycocotools")
    truth = outputs([(PERSON, 0, 0), ((200, 200, 300, 300), 0, 0)], [(PERSON, 0, 1)], k=6)
    found, more = outputs(one(), one(label=1)), candidates([((200, 200, 300, 300), 0.2, 0)], [])
    assert TASK.summary(found, more, truth)["map50"] == pytest.approx(1)
    assert TASK.summary(found, {}, truth)["map50"] < 0.8
    with pytest.raises(ConfigError, match="labelled boxes"):
        TASK.summary(found, more, outputs([], []))


def test_occurrences_are_the_objects_of_each_group() -> None:
    task = Detection(LABELS, k=4, class_groups={"vehicle": ("car", "truck")}, least_side=20)
    found = outputs([(PERSON, 0.9, 1), (PERSON, 0.8, 2), ((0, 0, 10, 10), 0.7, 0)], one(), [])
    assert task.occurrences(found).tolist() == [[0, 2], [1, 0], [0, 0]]


def test_description_is_for_people() -> None:
    assert TASK.describe(outputs([], one((1.04, 2, 3, 4), 1, 0.87654)), 1) == {
        "count": 1,
        "objects": [{"label": "car", "score": 0.8765, "box": {"x1": 1.0, "y1": 2, "x2": 3, "y2": 4}}],
    }


def test_drawing_leaves_the_image_alone() -> None:
    image = Image.new("L", (120, 120), 255)
    drawn = TASK.draw(image, outputs(one()), 0)
    assert drawn.size == image.size and drawn.mode == "RGB"
    assert image.getextrema() == (255, 255)
    assert drawn.getpixel((50, 100)) == (0x44, 0x77, 0xAA)
    assert drawn.getpixel((110, 110)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": []}, "length >= 1"),
        ({"labels": ["a"], "class_groups": {"b": ["c"]}}, "label 'c', which does not exist"),
        ({"labels": ["a"], "class_groups": {"b": ["a"], "c": ["a"]}}, "'a' is in two groups"),
        ({"labels": ["a", "b"], "class_groups": {"a": ["b"]}}, "group 'a' has the name of a label outside of it"),
        ({"labels": ["a"], "iou": 0}, "> 0"),
    ],
)
def test_impossible_declarations_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"kind": "detection", **fields}, Detection)


def test_one_label_is_enough() -> None:
    assert msgspec.convert({"kind": "detection", "labels": ["person"]}, Detection).events == (
        "missed person",
        "invented person",
    )
