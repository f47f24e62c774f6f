import math

import numpy as np
import pytest

from firstline.workbench.report_data import curve, reliability, share


def test_share_has_the_clopper_pearson_interval() -> None:
    """Against the tables: 5 of 50, and the two ends that have closed forms."""
    found = share(5, 50)
    assert (found.low, found.high) == pytest.approx((0.03327509, 0.21813537), abs=1e-7)
    none, all_of_them = share(0, 20), share(20, 20)
    assert (none.low, none.high) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert (all_of_them.low, all_of_them.high) == pytest.approx((0.025 ** (1 / 20), 1))
    empty = share(0, 0)
    assert math.isnan(empty.value) and (empty.low, empty.high) == (0, 1)


def test_interval_covers_the_true_share() -> None:
    random = np.random.default_rng(0)
    times = np.bincount(random.binomial(60, 0.1, 400))
    covering = [(found := share(hits, 60)).low <= 0.1 <= found.high for hits in range(len(times))]
    assert times[~np.array(covering)].sum() <= 0.05 * 400


def test_curve_matches_each_threshold() -> None:
    """Compares with counting for every threshold, with ties and an invalid score."""
    random = np.random.default_rng(1)
    scores = np.round(random.random(200), 1)
    scores[:3] = np.nan
    edge_right, full_right, agrees = random.random((3, 200)) < np.array([[0.7], [0.9], [0.8]])
    found = curve(scores, (~agrees).astype(float), (edge_right, full_right), 200)
    assert curve(scores, (~agrees).astype(float), None, 0).accuracy is None
    assert found.escalated[0] == 1
    assert math.isnan(found.disagreement[0])
    assert len(found.thresholds) == 1 + len(np.unique(scores[3:]))
    for at, threshold in enumerate(found.thresholds):
        kept = scores >= threshold
        assert found.escalated[at] == pytest.approx(1 - kept.mean())
        assert found.accuracy[at] == pytest.approx(np.where(kept, edge_right, full_right).mean())
        if kept.any():
            assert found.disagreement[at] == pytest.approx((~agrees)[kept].mean())
    assert found.escalated[-1] == pytest.approx(3 / 200)


def test_curve_without_scores_escalates_everything() -> None:
    right = np.array([True, False])
    found = curve(np.full(2, np.nan), np.array([0.0, 1.0]), (right, ~right), 2)
    assert found.escalated.tolist() == [1.0]
    assert found.accuracy.tolist() == [0.5]


def test_calibrated_probabilities_have_no_error() -> None:
    probabilities = np.repeat([0.25, 0.75, 1.0], [40, 40, 20])
    right = np.concatenate([np.arange(40) < 10, np.arange(40) < 30, np.ones(20, bool)])
    assert reliability(probabilities, right).error == pytest.approx(0)
    boastful = reliability(np.full(10, 0.9), np.arange(10) < 6)
    assert boastful.error == pytest.approx(0.3)
    (only,) = boastful.bins
    assert only.low <= only.probability < only.high
    assert (only.right.hits, only.right.rows) == (6, 10)


def test_calibration_error_is_weighted_by_rows() -> None:
    probabilities, right = np.array([0.1] * 30 + [0.9] * 10), np.array([True] * 40)
    assert reliability(probabilities, right).error == pytest.approx((30 * 0.9 + 10 * 0.1) / 40)
