"""Third-party detectors with the declared steps, against the average precision that was measured without Firstline."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tasks.detection import DETECTORS, images, precision, read_yolo_boxes, run

pytestmark = pytest.mark.shared_data


@pytest.mark.parametrize("name", DETECTORS)
def test_average_precision_is_reproduced(shared_data: Path, name: str) -> None:
    detector, data = DETECTORS[name], shared_data / "coco-cascade"
    truth = [read_yolo_boxes(data / "dev" / "labels" / f"{file.stem}.txt", file) for file in images(data)]
    assert precision(run(detector, data), truth).ap50 == pytest.approx(detector.ap50, abs=0.01)
