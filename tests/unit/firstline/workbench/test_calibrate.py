from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import float_graph
from firstline.workbench.calibrate import calibrate, fit_temperature, smallest_threshold
from firstline.workbench.certify import Terms, certify_bundle
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evidence import gather
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.classification import Classification, temper

_DIGITS = Path(__file__).parents[4] / "models/digits"


@pytest.mark.parametrize("true_temperature", [0.4, 1.0, 3.0])
def test_true_temperature_is_found(true_temperature: float) -> None:
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.full(5, 0.7), 20_000).astype(np.float32)
    honest = temper(probabilities, true_temperature)
    truth = (honest.cumsum(axis=1) > rng.random((len(probabilities), 1))).argmax(axis=1)
    assert fit_temperature(probabilities, truth) == pytest.approx(true_temperature, rel=0.05)


# Neighbours in FP32 among them, as two processors or two batch sizes give them for one image.
_scores = st.sampled_from(
    [
        float(np.nextafter(np.float32(sure), np.float32(towards)))
        for sure in (0.25, 0.5, 0.7, 0.75, 0.9123457, 1.0)
        for towards in (0, sure, 1)
    ]
)
_samples = st.lists(st.tuples(_scores, st.booleans()), min_size=1, max_size=12)
_same = 1e-6


@given(st.lists(_samples, min_size=1, max_size=3), st.sampled_from([0.0, 0.1, 0.3, 0.5]))
def test_the_smallest_threshold_meets_the_target(variants: list[list[tuple[float, bool]]], target: float) -> None:
    def meets(threshold: float) -> bool:
        """As routing decides: each score, a Python float, against the threshold."""
        kept = [[wrong for sure, wrong in variant if sure >= threshold] for variant in variants]
        return any(kept) and all(sum(wrong) <= target * len(wrong) for wrong in kept)

    scores = [np.array([sure for sure, _ in variant], np.float32) for variant in variants]
    differs = [np.array([wrong for _, wrong in variant]) for variant in variants]
    distinct = sorted({sure for variant in variants for sure, _ in variant})
    candidates = [sure for i, sure in enumerate(distinct) if i == 0 or sure - distinct[i - 1] > _same]
    expected = next((sure for sure in candidates if meets(sure)), None)
    if expected is None:
        with pytest.raises(ConfigError, match="even the surest answers"):
            smallest_threshold(scores, differs, target)
    else:
        found = smallest_threshold(scores, differs, target)
        assert meets(found)
        assert min(sure for sure in distinct if sure >= found) == expected
        assert min(abs(sure - found) for sure in distinct) > 2e-7  # no last bit decides


def test_graded_losses_count_by_their_mean() -> None:
    scores, losses = [np.array([0.9, 0.7, 0.5, 0.3])], [np.array([0.1, 0.1, 0.4, 0.8], np.float32)]
    assert 0.3 < smallest_threshold(scores, losses, 0.201) < 0.5
    with pytest.raises(ConfigError, match="even the surest answers differ more"):
        smallest_threshold(scores, losses, 0.05)


def test_nan_scores_are_not_accepted() -> None:
    scores, differs = [np.array([np.nan, 0.5], np.float32)], [np.array([True, False])]
    assert 0.499 < smallest_threshold(scores, differs, 0.0) < 0.5
    with pytest.raises(ConfigError, match="even the surest answers"):
        smallest_threshold([np.array([np.nan], np.float32)], [np.array([False])], 0.5)


def test_digits_are_calibrated() -> None:
    bundle = open_bundle(_DIGITS / "bundle")
    images = open_dataset(_DIGITS / "calibration", 150)
    found = calibrate(bundle, images, target_disagreement=0.02)
    assert not found.certified
    assert found.samples == 150
    assert [choice.id for choice in found.variants] == [model.id for model in bundle.manifest.edge]
    for choice in found.variants:
        assert choice.disagreement <= 0.02
        assert choice.edge_share > 0.5
    calibrated = calibrate(
        bundle,
        open_dataset(_DIGITS / "calibration", 50),
        target_disagreement=0.1,
        keep_temperature=True,
        against="full",
    )
    assert calibrated.policy.score == bundle.manifest.policy.score


@pytest.mark.parametrize("target", [-0.1, 1.0, float("nan")])
def test_target_out_of_range_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="it is a share"):
        calibrate(open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "calibration"), target_disagreement=target)


def test_independent_labels_get_a_threshold_and_no_temperature(tmp_path: Path) -> None:
    path = float_graph(
        tmp_path / "m.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], {"x": ["n", 2]}, {"y": ["n", 2]}
    )
    edge, task = model(path, tmp_path), Classification(("cat", "dog"), independent=True)
    full = msgspec.structs.replace(edge, id="full")
    bundle = write_manifest(tmp_path, [edge], (), task=task, full=full, inputs=(InputSpec("x", "FP32", (-1, 2)),))
    (tmp_path / "rows.csv").write_text("x,label\n" + '"[4, -2]",cat\n"[3, 3]",cat;dog\n"[-2, -1]",\n' * 4)
    data = open_dataset(tmp_path / "rows.csv")
    assert calibrate(bundle, data, target_disagreement=0.0).policy.score == bundle.manifest.policy.score
    terms = Terms(0.1, 0.1, "harm", select_fraction=0.5)
    assert certify_bundle(bundle, gather(bundle, data), terms).selection.score.temperature == 1
