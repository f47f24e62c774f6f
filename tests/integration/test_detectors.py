"""Third-party detectors with the declared steps, against the average precision that was measured without Firstline."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tasks.detection import DETECTORS, evaluate

pytestmark = pytest.mark.shared_data


@pytest.mark.parametrize("name", DETECTORS)
def test_average_precision_is_reproduced(shared_data: Path, name: str) -> None:
    detector = DETECTORS[name]
    assert evaluate(detector, shared_data / "coco-cascade").ap50 == pytest.approx(detector.ap50, abs=0.01)
