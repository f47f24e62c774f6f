"""What a part of the rows decides, the others cannot change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstline.workbench.selection import SELECT_FRACTION, SELECTS_FROM_ROWS, Selection, default_fraction, select
from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import split

OWN = Score("max_probability", 1.5)


def rows(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Probabilities, losses and truths of answers that fail more often where they are unsure."""
    random = np.random.default_rng(seed)
    logits = 3 * random.normal(size=(n, 4))
    found = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    return found, random.random(n) > found.max(axis=1), random.integers(0, 4, n)


def decided(data: tuple[Any, Any, Any], **options: Any) -> Selection:
    own_scores = scorer(OWN)(data[0]).astype(np.float64)
    return select(*data, own=OWN, own_scores=own_scores, **options)


def test_small_data_is_all_for_the_certificate_and_the_bundles_own_score() -> None:
    assert default_fraction(SELECTS_FROM_ROWS - 1) == 0
    assert default_fraction(SELECTS_FROM_ROWS) == SELECT_FRACTION
    found = decided(rows(SELECTS_FROM_ROWS - 1))
    assert (found.score, found.used, found.starts, found.value) == (OWN, 0, None, None)
    np.testing.assert_array_equal(found.rest, np.arange(SELECTS_FROM_ROWS - 1))
    assert decided(rows(SELECTS_FROM_ROWS)).used == 150


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 5), st.integers(0, 1000))
def test_rows_that_certify_decide_nothing(seed: int, noise: int) -> None:
    data = rows(400, seed)
    found = decided(data, fraction=0.25, seed=seed)
    other = rows(400, noise + 10)
    part, _ = split(400, 0.25, seed)
    for array, changed in zip(data, other, strict=True):
        changed[part] = array[part]
    again = decided(other, fraction=0.25, seed=seed)
    assert (found.score, found.value, found.starts, found.aurocs) == (
        again.score, again.value, again.starts, again.aurocs,
    )  # fmt: skip
    assert len(found.rest) == 300 and not set(found.rest) & set(part)


def test_a_score_by_name_is_taken_with_the_fitted_temperature_and_the_bundles_as_it_is() -> None:
    data = rows(400)
    entropy = decided(data, fraction=0.5, name="entropy")
    assert entropy.score == Score("entropy", decided(data, fraction=0.5).score.temperature)
    assert entropy.score.temperature != OWN.temperature
    np.testing.assert_array_equal(entropy.scores, scorer(entropy.score)(data[0]))
    assert decided(data, fraction=0.5, name="bundle").score == OWN
    learned = decided(data, fraction=0.5, name="learned")
    assert learned.score.learned == learned.value is not None
    assert decided(data, name="margin").score == Score("margin", OWN.temperature)


def test_what_the_rows_cannot_give_is_said() -> None:
    with pytest.raises(ConfigError, match="needs the edge model's logits"):
        decided(rows(50), name="energy")
    with pytest.raises(ConfigError, match="no score graph"):
        decided(rows(50), name="graph")
    with pytest.raises(ConfigError, match="set one aside"):
        decided(rows(50), name="learned")
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        decided(rows(50), fraction=1.0)
