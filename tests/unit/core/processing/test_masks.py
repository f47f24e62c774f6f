"""Maps of classes: models' grids, the frame of masks, and images."""

from typing import Any

import numpy as np
import pytest

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.processing import masks
from firstline_core.processing.geometry import InputSize, geometry
from firstline_core.processing.steps import Binary, CenterCrop, ClassMap, Resize, Softmax

FRAME = InputSize(8, 8)


def place(size: tuple[int, int], *steps: Any) -> Any:
    return geometry([size], steps)[0]


def test_a_letterboxed_map_is_kept_and_its_padding_ignored() -> None:
    classes = np.arange(64).reshape(8, 8)
    corner = place((16, 9), Resize(8, 8, letterbox="corner", rounding="nearest"))
    mask = masks.to_frame(classes, corner, FRAME, FRAME)
    np.testing.assert_array_equal(mask[:4], classes[:4])  # 4.5 rows of image
    assert (mask[4:] == masks.IGNORED).all()


@pytest.mark.parametrize(
    "step", [Resize(8, 8, letterbox="center"), Resize(8, 8), Resize(8, 8, letterbox="corner"), Resize(16, 32)]
)
def test_masks_of_different_inputs_are_comparable(step: Resize) -> None:
    """The left half of the image is 1, the right half 2, whatever the model's input."""
    where = place((16, 8), step)
    middle = where[2] * 8 + where[4]
    classes = np.where(np.arange(step.width) + 0.5 < middle, 1, 2)[None].repeat(step.height, axis=0)
    mask = masks.to_frame(classes, where, InputSize(step.width, step.height), FRAME)
    assert (mask[:4, :4] == 1).all() and (mask[:4, 4:] == 2).all() and (mask[4:] == masks.IGNORED).all()


def test_a_coarse_map_is_enlarged_and_cropped_margins_are_ignored() -> None:
    cropped = place((16, 16), CenterCrop(0.5), Resize(8, 8))
    mask = masks.to_frame(np.array([[1, 2], [3, 4]]), cropped, FRAME, FRAME)
    expected = np.full((8, 8), masks.IGNORED)
    expected[2:6, 2:6] = np.kron([[1, 2], [3, 4]], np.ones((2, 2)))
    np.testing.assert_array_equal(mask, expected)


def test_labelled_masks_take_the_same_frame_and_return() -> None:
    labelled = np.zeros((6, 12), np.uint8)
    labelled[:, 6:] = 3
    mask = masks.fitted(labelled, FRAME)
    assert (mask[:4, :4] == 0).all() and (mask[:4, 4:] == 3).all() and (mask[4:] == masks.IGNORED).all()
    np.testing.assert_array_equal(masks.to_image(mask, (12, 6), FRAME), labelled)


def test_only_cells_of_the_image_count() -> None:
    grid = masks.image_cells((4, 4), place((16, 8), Resize(8, 8, letterbox="corner")), FRAME)
    assert (grid.rows.tolist(), grid.columns.tolist()) == ([0, 1], [0, 1, 2, 3])
    thin = masks.image_cells((4, 4), place((4000, 1), Resize(8, 8, letterbox="center")), FRAME)
    assert len(thin.rows) == 1  # the cell that is nearest to the image


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 3, 3, 1), (2, 1, 3, 3)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_maps_have_one_axis_for_rows_and_two_for_pixels(shape: tuple[int, ...], dtype: Any) -> None:
    assert masks.class_map_of(np.ones(shape, dtype), "Model 'm'").shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("output", "message"), [(np.zeros((1, 3, 3, 5)), "not a map of classes"), (np.full((1, 3, 3), 0.5), "add argmax")]
)
def test_scores_are_no_map(output: Any, message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        masks.class_map_of(output, "Model 'm'")


def test_class_maps_rename_and_ignore() -> None:
    table = masks.class_table([ClassMap((0, 2, -1)), ClassMap((1, 0, 0))], 2)
    assert masks.to_labels(np.array([[0, 1, 2, masks.IGNORED]]), table, 2, "m").tolist() == [
        [1, 0, masks.IGNORED, masks.IGNORED]
    ]
    assert masks.to_labels(np.array([[0, 1]]), None, 2, "m").tolist() == [[0, 1]]
    with pytest.raises(InferenceError, match="classes from 0 to 7, but class_map has 3"):
        masks.to_labels(np.array([[0, 7]]), table, 2, "m")
    with pytest.raises(InferenceError, match="classes from -1 to 0, but the bundle has 2 labels"):
        masks.to_labels(np.array([[0, -1]]), None, 2, "m")
    with pytest.raises(ModelLoadError, match="class_map has 2 classes, but gets class 5"):
        masks.class_table([ClassMap((5,)), ClassMap((0, 1))], 2)


def test_class_maps_may_have_more_classes_than_masks() -> None:
    table = masks.class_table([ClassMap((*[-1] * 299, 1))], 2)
    assert masks.to_labels(np.array([[0, masks.IGNORED, 299]]), table, 2, "m").tolist() == [
        [masks.IGNORED, masks.IGNORED, 1]
    ]


def test_scores_of_classes_become_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 4, 5, 3)).astype(np.float32)
    last = masks.class_shares((Softmax(),), "NHWC", "m")(logits)
    first = masks.class_shares((Softmax(),), "NCHW", "m")(logits.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(first, last, rtol=1e-6)
    np.testing.assert_allclose(last.sum(axis=-1), 1, rtol=1e-6)
    binary = masks.class_shares((Binary("logit"),), "NCHW", "m")(logits[:, None, :, :, 0])
    np.testing.assert_allclose(binary[..., 1], 1 / (1 + np.exp(-logits[..., 0])), rtol=1e-5)
    np.testing.assert_allclose(masks.class_shares((Binary(),), "NHWC", "m")(last[..., :1]).sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.full((1, 2, 2, 3), 5.0), "add softmax before argmax"),
        (np.full((1, 2, 2, 3), np.nan), "NaN or infinity"),
        (np.zeros((1, 3)), "not scores of classes for each pixel"),
    ],
)
def test_numbers_that_are_no_probabilities_are_refused(output: Any, message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        masks.class_shares((), "NHWC", "m")(output)
