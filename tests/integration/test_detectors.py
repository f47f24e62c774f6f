"""Third-party detectors with the declared steps, against the average precision that was measured without Firstline."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tasks.detection import AP50, images, precision, read_yolo_boxes, run

pytestmark = pytest.mark.shared_data


@pytest.mark.parametrize("name", AP50)
def test_average_precision_is_reproduced(shared_data: Path, name: str) -> None:
    data = shared_data / "coco-cascade"
    truth = [read_yolo_boxes(data / "dev" / "labels" / f"{file.stem}.txt", file) for file in images(data)]
    assert precision(run(name, data), truth).ap50 == pytest.approx(AP50[name], abs=0.01)
