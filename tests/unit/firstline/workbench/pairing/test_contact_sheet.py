"""The pictures from which a person chooses."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.images import encode
from support.sample_models import average_colours

from firstline.workbench.decodings import DecodingDecision, Trials
from firstline.workbench.model_file import read_model_file
from firstline.workbench.pairing.contact_sheet import write_contact_sheet
from firstline.workbench.recognition import recognise
from firstline.workbench.recognition.reading import Choice, Surroundings
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import Classification
from firstline_core.types import object_array


@pytest.mark.parametrize("width", [1, 2])
def test_panels_of_a_high_image_are_bounded(tmp_path: Path, width: int) -> None:
    path = average_colours(tmp_path / "m.onnx", size=4)
    (reading, *_) = recognise(read_model_file(path), near=Surroundings("image", label_counts={3}))
    rows = [{"image": object_array([encode(np.zeros((4000, width, 3), np.uint8))])}]
    trials = Trials(path, Classification(("red", "green", "blue")), rows, RuntimeOptions())
    decision = DecodingDecision(Choice("mode", ("RGB", "BGR")), "RGB", sure=False, why="")
    assert write_contact_sheet(tmp_path / "sheet.png", trials, reading, decision) == ("RGB", "BGR")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height == 1280
