"""Boxes are mapped back to where they were in the upright original image."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.images import encode, images, turned

from firstline_core.processing.geometry import SizeStep, geometry, placed, to_original
from firstline_core.processing.images import ImageProcessing
from firstline_core.processing.steps import CenterCrop, Decode, Resize
from firstline_core.types import Tensor

SIDE = st.integers(1, 2000)
RESIZE = st.builds(
    lambda width, height, letterbox: Resize(width, height, **letterbox),
    st.integers(8, 640),
    st.integers(8, 640),
    st.sampled_from([{}, {"letterbox": "corner"}, {"letterbox": "center", "pad": 114}]),
)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Resize(100, 50), (640, 480, 100 / 640, 50 / 480, 0, 0)),
        (Resize(320, 320, letterbox="corner"), (640, 480, 0.5, 0.5, 0, 0)),
        (Resize(320, 320, letterbox="center"), (640, 480, 0.5, 0.5, 0, 40)),
        (CenterCrop(0.5), (640, 480, 1, 1, -200, -120)),
    ],
)
def test_geometry_is_size_scale_and_offset(step: SizeStep, expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(geometry([(640, 480)], [step]), [expected], rtol=1e-6)


def test_steps_are_combined() -> None:
    [row] = geometry([(640, 480)], [CenterCrop(), Resize(120, 240, letterbox="center")])
    np.testing.assert_allclose(row, [640, 480, 0.25, 0.25, -20, 60])
    np.testing.assert_allclose(to_original(np.array([[0, 60, 120, 180]], np.float32), row), [[80, 0, 560, 480]])


@given(SIDE, SIDE, RESIZE)
def test_the_whole_picture_is_mapped_back_to_itself(width: int, height: int, step: Resize) -> None:
    place = placed(step, width, height)
    assert 0 <= place.left <= place.left + place.width <= step.width
    assert 0 <= place.top <= place.top + place.height <= step.height
    [row] = geometry([(width, height)], [step])
    box = np.array([[place.left, place.top, place.left + place.width, place.top + place.height]], np.float32)
    np.testing.assert_allclose(to_original(box, row), [[0, 0, width, height]], atol=width * 1e-4 + height * 1e-4)


@pytest.mark.parametrize("letterbox", ["corner", "center"])
@pytest.mark.parametrize(("width", "height"), [(60, 30), (30, 60), (64, 64), (200, 8)])
def test_the_picture_is_where_geometry_says(letterbox: str, width: int, height: int) -> None:
    step = Resize(64, 64, letterbox=letterbox, pad=114)
    processing = ImageProcessing(Decode(), (step,))
    tensor = images(encode(np.full((height, width, 3), 255, np.uint8)))
    costs = processing.check_and_measure(tensor)
    pixels = processing.run(tensor, costs)[0, :, :, 0]
    assert set(np.unique(pixels)) <= {114, 255}
    rows, columns = np.nonzero(pixels == 255)
    box = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], np.float32)
    [row] = processing.geometry(tensor, costs)
    np.testing.assert_allclose(to_original(box, row), [[0, 0, width, height]], atol=0.01)


def test_geometry_refers_to_the_upright_image() -> None:
    tensor = images(turned(np.zeros((20, 40, 3), np.uint8)))
    processing = ImageProcessing(Decode(), (Resize(10, 10),))
    assert processing.geometry(tensor, processing.check_and_measure(tensor)).tolist() == [[20, 40, 0.5, 0.25, 0, 0]]


def test_pixels_that_need_no_step_have_a_geometry() -> None:
    processing = ImageProcessing(Decode(), ())
    tensor = Tensor("image", np.zeros((2, 4, 6, 3), np.uint8))
    assert processing.geometry(tensor, processing.check_and_measure(tensor)).tolist() == [[6, 4, 1, 1, 0, 0]] * 2
