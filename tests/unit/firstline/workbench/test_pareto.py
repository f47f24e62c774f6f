"""The picture of the models' costs and accuracy."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from msgspec.structs import replace
from support.profiles import point, profile

from firstline.workbench.pareto import drawn, spread

PLACES = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(sorted)


@given(PLACES)
def test_names_keep_their_order_and_limits(places: list[float]) -> None:
    found = spread(places, 0.05)
    assert len(found) == len(places) and found[-1] <= 1 and found[0] >= -1e-9
    assert all(later - earlier >= 0.05 - 1e-9 for earlier, later in pairwise(found))


@given(st.floats(0, 1))
def test_name_with_enough_space_stays(place: float) -> None:
    assert spread([place], 0.05) == [place]


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_names_do_not_overlap(machines: int) -> None:
    """Models of nearly equal accuracy on machines of nearly equal speed."""
    accuracy = {letter * 64: 0.9 + 0.001 * number for number, letter in enumerate("abcdef")}
    points = [
        point(1.0 + 0.01 * number, variant=f"model-{digest[0]}", digest=digest)
        for number, digest in enumerate(accuracy)
    ]
    profiles = [replace(profile(machine=f"m{number}"), points=tuple(points)) for number in range(machines)]
    figure = Figure(layout="constrained")
    drawn(figure, profiles, accuracy)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for axes in figure.axes for text in axes.texts]
    assert len(boxes) == len(accuracy)
    assert not [1 for at, one in enumerate(boxes) for other in boxes[:at] if one.overlaps(other)]
