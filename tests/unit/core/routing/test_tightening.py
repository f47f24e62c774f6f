import math

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


def test_the_largest_gain_begins_the_change() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        losses, weights = random.choice([0.0, 0.2, 1.0], 30), random.choice([0.1, 0.5, 1.0], 30)
        # The odds of a loss are three times those of 20 %: a loss of 1 at weight 1 multiplies the stake by 15 / 7.
        stakes = [1 + 10 / 7 * weight * (loss - 0.2) for loss, weight in zip(losses, weights, strict=True)]
        gains = [math.prod(stakes[start:]) for start in range(30)]
        assert since_change(losses, weights, 0.2) == (int(np.argmax(gains)) if max(gains) > 10 else 0)


def test_the_loosest_threshold_by_enumeration() -> None:
    random = np.random.default_rng(0)
    changes = np.repeat([[0.0, 0.01], [0.4, 0.01]], 60, axis=0)  # risk of low and of high scores: before, and since
    for _ in range(100):
        scores, propensities = random.choice([0.4, 0.5, 0.6, 0.7, 0.8], 120), random.choice([0.1, 0.5], 120)
        losses = (random.random(120) < np.where(scores < 0.65, *changes.T)).astype(float)
        audits = [audit for audit in zip(scores, losses, 1 / propensities, strict=True) if audit[0] >= 0.5]
        start = since_change([loss for _, loss, _ in audits], [weight / 10 for _, _, weight in audits], 0.1)
        largest = max(weight for _, _, weight in audits[start:])

        def satisfies(threshold: float, audits: list[tuple[float, ...]], largest: float) -> bool:
            above = [(loss, weight) for score, loss, weight in audits if score >= threshold]
            lost, total = sum(loss * weight for loss, weight in above), sum(weight for _, weight in above)
            return (lost + largest) / (total + largest) <= 0.1

        loosest = min(
            (score for score in (0.6, 0.7, 0.8) if satisfies(score, audits[start:], largest)), default=EVERYTHING
        )
        assert tightened(scores, losses, propensities, 0.1, 0.5) == loosest


def test_the_threshold_in_use_is_too_loose() -> None:
    assert tightened([0.5] * 30, [0.0] * 30, [1.0] * 30, 0.05, 0.5) == EVERYTHING


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
