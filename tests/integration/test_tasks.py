"""Models of each task with the recipes of the repository, against figures that were measured without Firstline."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tasks import forecast, segmentation

pytestmark = pytest.mark.shared_data


def test_overlaps_of_masks_are_reproduced(shared_data: Path) -> None:
    measured = [figure for figure in segmentation.figures(shared_data / "pascal-segmentation-cascade") if figure.aim]
    assert [figure.figure for figure in measured if not figure.holds] == []
    assert len(measured) == 3


def test_errors_of_forecasts_are_reproduced(shared_data: Path) -> None:
    measured = [figure for figure in forecast.figures(shared_data / "nab-forecast-cascade") if figure.aim]
    assert [figure.figure for figure in measured if not figure.holds] == []
    assert len(measured) == 3
