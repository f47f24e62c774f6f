import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing.tightening import EVERYTHING, since_change, tightened


def test_old_quiet_audits_are_left_out() -> None:
    losses = [0.0] * 1000 + [1.0, 0.0, 1.0, 1.0]
    assert since_change(losses, np.ones(1004), 0.05) == 1000
    assert since_change([], [], 0.05) == 0
    assert since_change([1.0] + [0.0] * 99, np.ones(100), 0.05) == 0  # nothing has changed
    assert since_change([0.0] * 99 + [1.0], np.ones(100), 0.05) == 0  # nor is one loss a change


def test_high_scores_are_still_accepted() -> None:
    scores = np.linspace(0.5, 1.0, 200)
    losses = (scores < 0.7).astype(float)
    order = np.random.default_rng(0).permutation(200)
    found = tightened(scores[order], losses[order], np.full(200, 0.02), 0.05, 0.5)
    kept = scores >= found
    assert 0.6 < found < 0.75
    assert losses[kept].mean() <= 0.05


def test_everything_is_escalated_if_all_scores_fail() -> None:
    assert tightened(np.linspace(0.5, 1.0, 200), np.ones(200), np.ones(200), 0.05, 0.5) == EVERYTHING


@pytest.mark.parametrize(("audits", "kept"), [(18, False), (19, True)])
def test_it_takes_so_many_audits_to_keep_anything(audits: int, kept: bool) -> None:
    scores = [0.9] * audits + [0.6]
    losses = [0.0] * audits + [1.0]
    backwards = tightened(scores[::-1], losses[::-1], [1.0] * (audits + 1), 0.05, 0.5)
    assert (backwards == 0.9) is kept
    assert (backwards == EVERYTHING) is not kept


def test_equal_scores_are_escalated_together() -> None:
    scores = [0.9] * 30 + [0.8] * 30 + [0.2] * 30
    losses = [0.0] * 30 + [0.0, 1.0] * 15 + [1.0] * 30
    assert tightened(scores[::-1], losses[::-1], [0.5] * 90, 0.05, 0.5) == 0.9
    assert tightened([0.2], [0.0], [1.0], 0.05, 0.5) == EVERYTHING


def test_an_audit_drawn_rarely_weighs_more() -> None:
    scores = np.tile([0.9, 0.8], 400)
    losses = np.zeros(800)
    losses[1::50] = 1.0
    rarely = np.where(losses > 0, 0.1, 0.5)
    assert tightened(scores, losses, np.full(800, 0.5), 0.05, 0.5) == 0.8
    assert tightened(scores, losses, rarely, 0.05, 0.5) == 0.9


def test_audits_are_columns_of_one_table() -> None:
    with pytest.raises(ConfigError, match="a score, a loss and a propensity"):
        tightened([0.5], [0.0, 1.0], [1.0], 0.05, 0.5)
