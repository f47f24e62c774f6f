"""The checker of the independent kill test; `make -C tests kill-check` runs it."""

import io

import numpy as np
import pytest
from PIL import Image

from chaos.independent_kills import Found, Report, alike, count, count_wrong, picture

RIGHT = {1: {"one": 0.9, "seven": 0.1}, 2: {"two": 0.8, "three": 0.2}, 3: {"three": 0.7, "nine": 0.3}}


def counted(**found: Found | None) -> Report:
    report = Report("http")
    count(report, {"a": 1, "b": 2}, found, RIGHT)
    return report


def test_each_acknowledged_request_has_its_own_answer() -> None:
    report = counted(a=Found("a", "final", RIGHT[1]), b=Found("b", "expired", {"three": 0.6}))
    assert (report.acknowledged, report.final, report.expired, report.lost, report.swapped) == (2, 1, 1, 0, 0)
    assert report.holds


@pytest.mark.parametrize("end", [None, Found("a", "provisional", RIGHT[1])])
def test_a_request_without_end_is_lost(end: Found | None) -> None:
    report = counted(a=end, b=Found("b", "final", RIGHT[2]))
    assert (report.final, report.lost, report.swapped, report.holds) == (1, 1, 0, False)
    assert counted(b=Found("b", "final", RIGHT[2])).lost == 1


@pytest.mark.parametrize("end", [Found("a", "final", RIGHT[2]), Found("b", "final", RIGHT[1])])
def test_another_requests_answer_is_swapped(end: Found) -> None:
    report = counted(a=end, b=Found("b", "final", RIGHT[2]))
    assert (report.final, report.lost, report.swapped, report.holds) == (2, 0, 1, False)


def test_nothing_acknowledged_shows_nothing() -> None:
    assert not Report("http").holds


def test_answers_agree_within_rounding() -> None:
    assert alike({"one": 0.9}, {"one": 0.90005, "seven": 0.09})
    assert not alike({"one": 0.9}, {"one": 0.91, "seven": 0.09})
    assert not alike({"one": 0.9, "two": 0.1}, {"one": 0.9, "seven": 0.1})
    assert count_wrong([(1, RIGHT[1]), (2, RIGHT[3]), (3, RIGHT[3])], RIGHT) == 1


def test_each_number_has_an_image_of_its_own() -> None:
    images = [Image.open(io.BytesIO(picture(number, seed=1))) for number in range(200)]
    assert {(image.size, image.mode) for image in images} == {((8, 8), "L")}
    assert len({np.asarray(image).tobytes() for image in images}) == 200
