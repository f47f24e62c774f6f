"""Forecast models of NAB as anomaly models: what they did not expect."""

import csv
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.loading import load_model
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.anomaly import ANOMALOUS, SCORE

RECIPE = Path(__file__).parents[2] / "models" / "nab-forecast-cascade" / "anomaly.toml"


@pytest.mark.shared_data
def test_the_largest_residuals_of_the_full_model_lie_in_labelled_windows(shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "nab-forecast-cascade"
    manifest = (bundle := create_bundle(read_recipe(RECIPE, data), tmp_path / "nab")).manifest
    assert manifest.full is not None
    labels, shares, decided = json.loads((data / "dev" / "anomaly_windows.json").read_text()), list[float](), 0
    with (
        closing(load_model(bundle, manifest.full, RuntimeOptions(threads=1))) as full,
        closing(load_model(bundle, manifest.edge[0], RuntimeOptions(threads=1))) as edge,
    ):
        for file in sorted((data / "dev" / "series").iterdir()):
            with file.open() as lines:
                times, values = zip(
                    *((row["timestamp"], float(row["value"])) for row in csv.DictReader(lines)), strict=True
                )
            rows = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(np.array(values), 49))
            outputs = full.predict({"window": rows}).outputs
            deviation = rows[:, :-1].std(axis=1)
            largest = np.argsort(-outputs[SCORE] * np.where(deviation > 0, deviation, 1))[:20] + 48
            spans = [(start[:19], end[:19]) for start, end in labels.get(file.name, [])]
            shares.append(np.mean([any(start <= times[row] <= end for start, end in spans) for row in largest]))
            decided += int((edge.predict({"window": rows[:500]}).outputs[ANOMALOUS] != outputs[ANOMALOUS][:500]).sum())
    assert np.mean(shares) == pytest.approx(0.24, abs=0.01)  # the data's README states 0.24, and 0.10 by chance
    assert 0 < decided < 0.03 * 9 * 500
