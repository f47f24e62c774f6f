"""Figures of the grid of bandwidths and models."""

from __future__ import annotations

import pytest

from bench.hardware.split import BANDWIDTHS_MBIT_S, Cell, _break_even, _up_to


def cell(bandwidth: float = 1.0, *, planned: str = "device", **took_ms: float) -> Cell:
    """One of a model on a device that is 8 times slower."""
    quickest = min(took_ms, key=took_ms.__getitem__)
    return Cell("m", bandwidth, 20.0, 8, {}, took_ms, planned, quickest)


def test_a_detour_is_told_of_the_quickest_way() -> None:
    assert cell(planned="input", device=10.0, input=15.0).regret == 0.5


def test_a_cell_is_contested_where_another_way_is_near() -> None:
    assert cell(device=10.0, input=29.0).is_contested
    assert not cell(device=10.0, input=31.0).is_contested
    assert not cell(device=10.0).is_contested


@pytest.mark.parametrize(
    ("wins", "value", "unit"),
    [
        ("+++++++", 64.0, "Mbit/s and beyond"),
        ("++-----", 1.0, "Mbit/s, no more at 2"),
        ("++-+++-", 1.0, "Mbit/s, no more at 2"),
        ("-------", 0.5, "Mbit/s is too much already"),
    ],
)
def test_what_lies_outside_the_grid_is_told_as_such(wins: str, value: float, unit: str) -> None:
    found = _up_to("x", [cell(at, device=1.0) for at in BANDWIDTHS_MBIT_S], [sign == "+" for sign in wins])
    assert (found.value, found.unit) == (value, unit)


def test_where_the_input_stays_only_device_and_splits_compete() -> None:
    cells = [
        Cell("m", 1.0, 20.0, 8, {}, {"device": 100.0, "input": 150.0, "split a int8": 120.0}, "device", "device"),
        Cell("m", 64.0, 20.0, 8, {}, {"device": 100.0, "input": 30.0, "split a int8": 80.0}, "input", "input"),
    ]
    found = {one.figure.partition(": ")[2]: (one.value, one.unit) for one in _break_even("m", cells)}
    assert found["device up to"] == (1.0, "Mbit/s, no more at 64")
    assert found["device up to, where the input stays"] == (1.0, "Mbit/s, no more at 64")
    assert found["a split sooner, where the input stays"][0] == pytest.approx(0.2)


def test_what_a_split_is_worth_is_not_told_where_none_was_gone() -> None:
    found = [one.figure for one in _break_even("m", [cell(device=1.0, input=2.0)])]
    assert [name for name in found if "stays" in name] == []
