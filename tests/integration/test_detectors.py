"""Third-party detectors with the declared steps: average precision measured without Firstline, and certificates."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.tasks.detection import AP50, labelled_boxes, precision, run
from firstline.workbench.bundle import create_bundle
from firstline.workbench.certify import Terms, certify_bundle
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evidence import gather
from firstline.workbench.promises import EventBound
from firstline.workbench.spec import read_recipe
from firstline_core.errors import ConfigError

_MODELS = Path(__file__).parents[2] / "models"

pytestmark = [pytest.mark.shared_data, pytest.mark.usefixtures("brief_row_checks")]


@pytest.mark.parametrize("name", AP50)
def test_average_precision_is_reproduced(shared_data: Path, name: str) -> None:
    data = shared_data / "coco-cascade"
    assert precision(run(name, data), labelled_boxes(data)).ap50 == pytest.approx(AP50[name], abs=0.01)


def test_detector_that_returns_nothing_is_not_certified(shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "coco-cascade"
    recipe = (_MODELS / "coco-cascade/recipe.toml").read_text(encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(recipe.replace("suppress:0.6:", "suppress:1:"), encoding="utf-8")
    spec = read_recipe(tmp_path / "recipe.toml", data)
    bundle = create_bundle(replace(spec, edge=spec.edge[:1]), tmp_path / "bundle")
    evidence = gather(bundle, open_dataset(data / "dev").some(24))
    assert not evidence.edge.outputs["count"].any()
    for promises in ({"missed person": EventBound(0.5, 0.4)}, {"invented person": EventBound(0.5, 0.4)}):
        assert certify_bundle(bundle, evidence, Terms(0, 0).about(promises)).certificate is None

    # Nor with suppression inside, which returns no candidates either.
    nothing = {name: np.zeros_like(array) for name, array in evidence.edge.evidence.items()}
    silent = replace(evidence, edge=replace(evidence.edge, evidence=nothing), scores=np.zeros(24))
    with pytest.raises(ConfigError, match="is 0 for all 24 rows, so it cannot tell which answers to accept"):
        certify_bundle(bundle, silent, Terms(0, 0).about({"missed person": EventBound(0.5, 0.4)}))
