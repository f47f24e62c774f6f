from __future__ import annotations

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing.certification import certify
from firstline_core.routing.weighted import certify_weighted


def drawn(n: int, seed: int, risk_below: float) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    """Rows of a population whose scores are uniform; those below 0.5 err, and are drawn five times as often."""
    random = np.random.default_rng(seed)
    scores = random.random(12 * n)
    losses = (random.random(12 * n) < np.where(scores < 0.5, risk_below, 0.005)).astype(float)
    propensities = np.where(scores < 0.5, 0.5, 0.1)
    taken = np.flatnonzero(random.random(12 * n) < propensities)[:n]
    return scores[taken], losses[taken], 1 / propensities[taken]


def test_equal_weights_change_nothing() -> None:
    scores, losses, _ = drawn(1000, 0, 0.2)
    plain = certify(scores, losses, 0.05, 0.1, select_fraction=0.2, seed=3)
    assert certify_weighted(scores, losses, np.full(1000, 7.0), 0.05, 0.1, select_fraction=0.2, seed=3) == plain


def test_rows_that_were_drawn_too_often_do_not_spoil_a_certificate() -> None:
    # Everything may be kept: 6 % are wrong below 0.5, and 0.5 % above, 3.25 % together.
    scores, losses, weights = drawn(2000, 1, 0.06)
    weighted = certify_weighted(scores, losses, weights, 0.05, 0.1)
    plain = certify(scores, losses, 0.05, 0.1)
    assert weighted.certified and weighted.risk_upper is not None
    assert weighted.kept > plain.kept  # the plain one takes the errors for as common as they were drawn
    assert weighted.kept == pytest.approx(1 - (weighted.threshold or 0.0), abs=0.05)
    assert weighted.risk_upper <= 0.05


def test_the_promise_is_kept_where_the_draw_hides_errors() -> None:
    # Errors below 0.5 are drawn rarely: counted plainly, everything would seem to hold.
    broken = {"weighted": 0, "plain": 0}
    for seed in range(30):
        random = np.random.default_rng(seed)
        scores = random.random(8_000)
        risks = np.where(scores < 0.5, 0.12, 0.0)
        losses = (random.random(8_000) < risks).astype(float)
        propensities = np.where(scores < 0.5, 0.02, 0.2)
        taken = random.random(8_000) < propensities
        rows = scores[taken], losses[taken]
        for name, found in (
            ("weighted", certify_weighted(*rows, 1 / propensities[taken], 0.05, 0.1)),
            ("plain", certify(*rows, 0.05, 0.1)),
        ):
            kept_below = max(0.0, 0.5 - (1.0 if found.threshold is None else found.threshold))
            broken[name] += 0.12 * kept_below / (0.5 + kept_below) > 0.05
    assert broken["weighted"] <= 6
    assert broken["plain"] > 15


@pytest.mark.parametrize(("weights", "says"), [([1, 0], "above 0"), ([1, np.nan], "above 0"), ([1], "one each a row")])
def test_what_is_no_weight_is_said_so(weights: list[float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        certify_weighted([0.5, 0.6], [0, 1], weights, 0.05, 0.1)
