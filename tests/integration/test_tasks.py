"""Models of each task with the recipes of the repository, against what was measured without Firstline."""

import io
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

from bench.tasks import forecast
from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.loading import load_model
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.segmentation import MASK
from firstline_core.types import join_rows

pytestmark = [pytest.mark.shared_data, pytest.mark.usefixtures("brief_row_checks")]

_RECIPE = Path(__file__).parents[2] / "models" / "pascal-segmentation-cascade" / "recipe.toml"
_SIDE, _IMAGES = 513, 3  # in both orientations


def _by_hand(interpreter: Interpreter, encoded: bytes) -> Any:
    """The classes of a model for an image, as the data's README describes it: without the padding."""
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    width, height = (round(side * _SIDE / max(image.size)) for side in image.size)
    padded = np.full((1, _SIDE, _SIDE, 3), 128, np.uint8)
    padded[0, :height, :width] = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], padded)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0, :height, :width]


def _overlap(ours: Any, theirs: Any) -> float:
    """Mean intersection over union of the classes that occur, where `theirs` is not 255."""
    ours, theirs = ours[theirs != 255], theirs[theirs != 255]
    classes = np.union1d(ours, theirs)
    return float(np.mean([((ours == c) & (theirs == c)).sum() / ((ours == c) | (theirs == c)).sum() for c in classes]))


def test_masks_are_those_of_models_driven_by_hand(shared_data: Path, tmp_path: Path) -> None:
    data, dev = shared_data / "pascal-segmentation-cascade", tmp_path / "dev"
    labelled = sorted((data / "dev" / "masks").iterdir())[:_IMAGES]
    for mask in labelled:
        (image,) = (shared_data / "coco-cascade" / "dev" / "images").glob(f"{mask.stem}.*")
        for file in (mask, image):
            (dev / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, dev / file.parent.name)
    bundle, dataset = create_bundle(read_recipe(_RECIPE, data), tmp_path / "bundle"), open_dataset(dev)
    task, truth = bundle.manifest.task, [Image.open(mask) for mask in labelled]
    found, by_hand = {}, {}
    for model in bundle.manifest.models:
        interpreter = Interpreter(str(bundle.file(model.artefact)), num_threads=1)
        interpreter.allocate_tensors()
        by_hand[model.id] = [_by_hand(interpreter, encoded) for encoded in dataset.contents()]
        with closing(load_model(bundle, model, RuntimeOptions())) as loaded:
            rows = [loaded.predict({"image": np.array([encoded], object)}) for encoded in dataset.contents()]
        found[model.id] = join_rows([row.outputs for row in rows])
        overlaps = []
        for mask, classes, labels in zip(found[model.id][MASK], by_hand[model.id], truth, strict=True):
            height, width = classes.shape
            np.testing.assert_array_equal(mask[:height, :width], classes)
            assert (mask[height:] == 255).all() and (mask[:, width:] == 255).all()
            whole = Image.fromarray(classes.astype(np.uint8)).resize(labels.size, Image.Resampling.NEAREST)
            overlaps.append(_overlap(np.asarray(whole), np.asarray(labels)))
        evidence = join_rows([row.evidence for row in rows])
        summary = task.summary(found[model.id], evidence, dataset.required_truth(task))
        assert summary["miou"] == pytest.approx(np.mean(overlaps), abs=0.001)
    agreement = [_overlap(half, whole) for half, whole in zip(by_hand["half"], by_hand["whole"], strict=True)]
    assert 1 - task.loss(found["half"], found["whole"]) == pytest.approx(agreement, abs=1e-6)


def test_errors_of_forecasts_are_reproduced(shared_data: Path) -> None:
    measured = [figure for figure in forecast.figures(shared_data / "nab-forecast-cascade") if figure.aim]
    assert [figure.figure for figure in measured if not figure.holds] == []
    assert len(measured) == 3
