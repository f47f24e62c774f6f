"""The size of pictures."""

import pytest

from firstline_core.tasks.drawing import size_within


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1000, 500), (480, 240)), ((100, 200), (240, 480)), ((4000, 1), (480, 1)), ((1, 4000), (1, 480))],
)
def test_pictures_fit_into_a_square(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert size_within(size, (480, 480)) == expected
