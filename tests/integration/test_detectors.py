"""Third-party detectors with the declared steps: average precision, and certificates."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.tasks.detection import labelled_boxes, precision, run
from firstline.workbench.bundle import create_bundle
from firstline.workbench.certify import Terms, certify_bundle
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.event_promises import EventBound
from firstline.workbench.evidence import gather
from firstline.workbench.spec import read_recipe
from firstline_core.errors import ConfigError

_MODELS = Path(__file__).parents[2] / "models"

pytestmark = [pytest.mark.shared_data, pytest.mark.usefixtures("brief_row_checks")]


@pytest.mark.parametrize(
    ("name", "ap50", "ap50_95"),
    [
        ("fastestdet", 0.3596, 0.2434),
        ("ssd", 0.3946, 0.2739),
        ("dynamic-range", 0.6343, 0.4127),
        ("yolox-nano", 0.6188, 0.4059),
    ],
)
def test_average_precision_is_reproduced(shared_data: Path, name: str, ap50: float, ap50_95: float) -> None:
    """On 32 images. `make -C bench tasks` compares that on all with what was measured without Firstline.

    LiteRT without XNNPACK gives up to 0.0042 more or less; other processors may, too.
    """
    data = shared_data / "coco-cascade"
    found = precision(run(name, data, 32), labelled_boxes(data)[:32])
    assert (found.ap50, found.ap50_95) == pytest.approx((ap50, ap50_95), abs=0.005)


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
