"""Losses, scores and events of masks."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.geometry import GEOMETRY, InputSize, geometry
from firstline_core.processing.masks import IGNORED
from firstline_core.processing.steps import Argmax, ClassMap, ClassScores, Resize, Sigmoid, Softmax
from firstline_core.tasks.base import ModelOutputs, Postprocess, check_outputs
from firstline_core.tasks.segmentation import CLASS_BEST, CLASS_IOU, CONFIDENCE, MASK, Segmentation
from firstline_core.tasks.view import View
from firstline_core.types import Array, TensorSpec

LABELS = ("background", "cat", "dog")
TASK = Segmentation(LABELS, width=4, height=2)
X = IGNORED


def masks(*rows: list[list[int]], confidence: float = 0.5) -> dict[str, Array]:
    mask = np.array(rows, np.uint8)
    return {MASK: mask, CONFIDENCE: np.full(len(mask), confidence, np.float32)}


HALF = [[0, 0, 1, 1], [0, 0, 1, 1]]
QUARTER = [[0, 0, 0, 1], [0, 0, 0, 1]]
EMPTY = [[0, 0, 0, 0], [0, 0, 0, 0]]
DOG = [[0, 0, 2, 2], [0, 0, 2, 2]]
CUT = [[0, 0, 1, X], [0, 0, 1, X]]


@pytest.mark.parametrize(
    ("edge", "full", "expected"),
    [
        (HALF, HALF, 0),
        (HALF, QUARTER, 1 - (4 / 6 + 2 / 4) / 2),
        (EMPTY, HALF, 1 - (4 / 8 + 0) / 2),
        (DOG, HALF, 1 - (1 + 0 + 0) / 3),
    ],
)
def test_loss_is_one_minus_the_mean_over_occurring_classes(edge: Any, full: Any, expected: float) -> None:
    assert TASK.loss(masks(edge), masks(full)) == pytest.approx([expected])
    assert TASK.loss(masks(full), masks(edge)) == pytest.approx([expected])


NOTHING = [[X] * 4] * 2
NO_CAT = [[0, 0, X, X], [0, 0, X, X]]


@pytest.mark.parametrize(
    ("edge", "full", "expected"),
    [
        (HALF, CUT, 0),
        (CUT, CUT, 0),
        (CUT, HALF, 1 - (1 + 2 / 4) / 2),
        (NO_CAT, HALF, 1 - (1 + 0) / 2),
        (NOTHING, HALF, 1),
        (HALF, NOTHING, 1),
        (NOTHING, NOTHING, 0),
    ],
)
def test_only_pixels_that_the_full_model_ignores_are_left_out(edge: Any, full: Any, expected: float) -> None:
    assert TASK.loss(masks(edge), masks(full)) == pytest.approx([expected])


@pytest.mark.parametrize("edge", [NO_CAT, NOTHING])
def test_a_class_that_the_edge_ignores_is_missed(edge: Any) -> None:
    missed = TASK.events_of(["missed cat"], masks(edge), masks(HALF))["missed cat"]
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([True], [1])
    assert TASK.events_of(["invented cat"], masks(edge), masks(HALF))["invented cat"].counts.tolist() == [False]
    found = TASK.summary(masks(edge), {}, masks(HALF))
    kept = float(edge is NO_CAT)
    assert found == pytest.approx({"miou": kept / 2, "miou_pooled": kept / 2, "pixel_accuracy": kept / 2})


def test_a_mask_without_a_class_is_no_label() -> None:
    assert TASK.labelled(masks(HALF, NOTHING, CUT)).tolist() == [True, False, True]


def test_only_counted_labels_are_compared() -> None:
    cats = Segmentation(LABELS, width=4, height=2, counted=("cat",))
    assert cats.loss(masks(HALF, DOG), masks(QUARTER, DOG)) == pytest.approx([0.5, 0])
    with pytest.raises(ValueError, match="'cow', which does not exist"):
        Segmentation(LABELS, width=4, height=2, counted=("cow",))


def test_events_name_a_class() -> None:
    edge, full = masks(EMPTY, HALF, HALF, QUARTER), masks(HALF, EMPTY, HALF, HALF)
    missed, invented = TASK.events_of(["missed cat", "invented cat"], edge, full).values()
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([True, False, True, True], [1, 0, 0, 0])
    assert (invented.counts.tolist(), invented.loss.tolist()) == ([False, True, True, True], [0, 1, 0, 0])
    strict = Segmentation(LABELS, width=4, height=2, iou=0.51)  # the last row overlaps by a half
    assert [event.loss.tolist() for event in strict.events_of(["missed cat", "invented cat"], edge, full).values()] == [
        [1, 0, 0, 1], [0, 1, 0, 1],
    ]  # fmt: skip
    pixel = masks([[0, 0, 0, 0], [0, 0, 0, 1]])
    assert strict.events_of(["missed cat"], pixel, pixel)["missed cat"].loss.tolist() == [0]
    large = Segmentation(LABELS, width=4, height=2, least_share=0.3)
    assert large.events_of(["invented cat"], edge, full)["invented cat"].counts.tolist() == [False, True, True, False]
    assert large.occurrences(edge).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0]]
    with pytest.raises(ConfigError, match="no event 'missed cow'"):
        TASK.events_of(["missed cow"], edge, full)


def test_no_rows_have_no_events() -> None:
    none = {MASK: np.zeros((0, 2, 4), np.uint8), CONFIDENCE: np.zeros(0, np.float32)}
    missed, invented = TASK.events_of(["missed cat", "invented cat"], none, none).values()
    assert not len(missed.counts) and not len(invented.counts)


def evidence(*rows: tuple[list[float], list[float]]) -> dict[str, Array]:
    return {
        name: np.array([row[index] for row in rows], np.float32) for index, name in enumerate((CLASS_IOU, CLASS_BEST))
    }


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("expected_iou", [0.7, 0.9, 0]),
        ("lowest_iou", [0.5, 0.9, 1]),
        ("mean_confidence", [0.5, 0.5, 0.5]),
        ("few_classes", [0.5, 1, 1]),
    ],
)
def test_scores(kind: str, expected: list[float]) -> None:
    seen = evidence(([0.9, 0.5, 0], [1, 0.6, 0.2]), ([0.9, 0, 0], [1, 0.6, 0.1]), ([0, 0, 0], [0, 0, 0]))
    found = TASK.score(kind, masks(HALF, EMPTY, [[X] * 4] * 2), seen)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_map_alone_has_few_scores() -> None:
    for kind in set(Segmentation.score_kinds) - {"few_classes"}:
        with pytest.raises(InvalidTensorError, match="only their map"):
            TASK.score(kind, masks(HALF), {})
        assert "few_classes and learned" in TASK.unscored(kind, (ClassMap((0,)),))
        assert TASK.unscored(kind, (ClassScores("logits"),)) == TASK.unscored(kind, (Argmax(),)) == ""
    assert TASK.unscored("few_classes", ()) == TASK.unscored("learned", ()) == ""
    assert TASK.features(masks(HALF), {}).shape == (1, TASK.feature_count)


def test_quality_against_labelled_masks() -> None:
    outputs, truth = masks(HALF, QUARTER, HALF), masks(HALF, HALF, [[X] * 4] * 2)
    np.testing.assert_allclose(TASK.truth_loss(outputs, truth), [0, 1 - (4 / 6 + 2 / 4) / 2, 1], rtol=1e-6)
    found = TASK.summary(outputs, {}, truth)
    assert found == pytest.approx(
        {"miou": (1 + (4 / 6 + 2 / 4) / 2) / 2, "miou_pooled": (8 / 10 + 6 / 8) / 2, "pixel_accuracy": 14 / 16}
    )
    with pytest.raises(ConfigError, match="the data has none"):
        TASK.summary(masks(HALF), {}, masks([[X] * 4] * 2))


def test_an_answer_for_people() -> None:
    found = TASK.describe(masks(HALF, [[0, 0, 0, 1], [X, X, X, X]]), 1)
    assert found["classes"] == [
        {"label": "background", "class": 0, "share": 0.75},
        {"label": "cat", "class": 1, "share": 0.25},
    ]
    png = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["mask"]["png"]))))
    assert png.tolist() == [[0, 0, 0, 1], [X, X, X, X]]


def test_a_view_selects_labels_and_the_form_of_the_mask() -> None:
    view = View(classes=("cat",), masks="rle", sizes=((400, 100),))
    found = TASK.describe(masks([[0, 0, 0, 1], [X, X, X, X]]), 0, view)
    assert found["mask"] == {"width": 4, "height": 1, "rle": [[X, 3], [1, 1]]}
    assert [each["label"] for each in found["classes"]] == ["cat"]


def test_drawing_colours_the_classes() -> None:
    drawn = np.asarray(TASK.draw(Image.new("RGB", (400, 200)), masks(HALF), 0))
    assert drawn[:, 200:].any() and not drawn[:, :190].any()
    hidden = np.asarray(TASK.draw(Image.new("RGB", (400, 200)), masks(HALF), 0, View(classes=("dog",))))
    assert not hidden.any()


def test_groups_and_difference() -> None:
    assert TASK.groups(masks(HALF, EMPTY, DOG)) == ["cat", "background", "dog"]
    assert TASK.difference(masks(HALF), masks(QUARTER)) == 0.25
    assert TASK.difference(masks(HALF), masks(HALF, confidence=0.25)) == 0.25
    assert TASK.difference(masks(HALF), masks(HALF, HALF)) == np.inf


@pytest.mark.parametrize(
    ("found", "message"),
    [(masks([[0, 1, 2, 3]] * 2), "classes outside of 0 to 2"), (masks(HALF, confidence=2), "confidence outside")],
)
def test_values_that_are_not_possible_are_refused(found: dict[str, Array], message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        check_outputs(TASK.declared(rounded=True, cut=False), found, 1)


def compiled(*steps: Any, output: str = "y") -> Postprocess:
    ports = [TensorSpec(name, "FP32", (-1, -1, -1, 3)) for name in ("y", "z")]
    return TASK.postprocess(
        ModelOutputs("Model 'm'", steps, ports, output, lambda: InputSize(4, 4), lambda _: lambda array: array)
    )


ROWS = {"x": np.zeros((1, 4, 4, 3)), GEOMETRY: geometry([(8, 4)], [Resize(4, 4, letterbox="corner")])}


def test_logits_become_a_mask_with_confidence() -> None:
    logits = np.full((1, 4, 4, 3), -50, np.float32)
    logits[..., 0] = 0
    logits[0, :2, 2:, 1] = np.log(3)  # the cat has three quarters
    logits[0, 2:] = [0, 0, 100]  # padding, of which the model is sure
    found = compiled(Softmax(), Argmax()).run({"y": logits}, ROWS)
    assert found.outputs[MASK][0].tolist() == HALF
    assert found.outputs[CONFIDENCE] == pytest.approx([(4 * 1 + 4 * 0.75) / 8])
    expected = {CLASS_IOU: [[4 / 5, 3 / 4, 0]], CLASS_BEST: [[1, 0.75, 0]]}
    for name, values in expected.items():
        np.testing.assert_allclose(found.evidence[name], values, atol=1e-6)
    check_outputs(TASK.declared(rounded=False, cut=False), found.outputs, 1)
    first = compiled(Softmax(), Argmax("NCHW")).run({"y": logits.transpose(0, 3, 1, 2)}, ROWS)
    np.testing.assert_array_equal(first.outputs[MASK], found.outputs[MASK])


def test_a_map_has_its_confidence_from_another_output() -> None:
    classes = np.zeros((1, 4, 4), np.int64)
    classes[:, :, 2:] = 5
    coarse = np.zeros((1, 2, 2, 6), np.float32)
    coarse[..., 0] = 100
    post = compiled(ClassMap((0, -1, -1, -1, -1, 1)), ClassScores("z"))
    assert (post.reads, post.needs) == (("y", "z"), (GEOMETRY,))
    found = post.run({"y": classes, "z": coarse}, ROWS)
    assert found.outputs[MASK][0].tolist() == HALF and found.outputs[CONFIDENCE] == pytest.approx([1])
    alone = compiled(ClassMap((0, -1, -1, -1, -1, 1))).run({"y": classes}, ROWS)
    assert alone.evidence == {} and alone.outputs[CONFIDENCE].tolist() == [0]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((Sigmoid(),), "softmax or binary, argmax and class_map"),
        ((Argmax(), ClassScores("z")), "at most one class_scores"),
        ((ClassScores("z"), ClassScores("z")), "class_scores is given once"),
        ((ClassScores("other"),), "no output 'other'"),
        ((ClassMap((0, 300)),), "class_map gives the label 300; there are 3, from 0, and -1"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        compiled(*steps)


def test_outputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InferenceError, match="gave 3 maps for 1 row"):
        compiled(ClassScores("z")).run({"y": np.zeros((1, 2, 2), np.int64), "z": np.zeros((3, 2, 2, 3))}, ROWS)
    with pytest.raises(InferenceError, match="gave 2 maps for 1 row"):
        compiled().run({"y": np.zeros((2, 4, 4))}, ROWS)
    with pytest.raises(InferenceError, match="scores of 2 classes, but the bundle 3 labels"):
        compiled(Softmax(), Argmax()).run({"y": np.zeros((1, 4, 4, 2))}, ROWS)
