from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing.bounds import betting
from firstline_core.routing.certification import certify
from firstline_core.routing.contracts import certify_groups, certify_stream, net_loss


def _stream(random: Any, n: int) -> tuple[Any, Any]:
    """A score, and an edge that is wrong alone more often below it; sometimes it is right alone."""
    scores = random.random(n)
    edge = random.random(n) < 0.6 + 0.38 * scores
    full = random.random(n) < 0.95
    return scores, net_loss(edge, full)


def test_net_loss_by_hand() -> None:
    assert net_loss([True, True, False, False], [True, False, True, False]).tolist() == [0, -1, 1, 0]


@pytest.mark.parametrize("select", [0.0, 0.2])
def test_the_stream_gives_up_no_more_than_promised(select: float) -> None:
    random = np.random.default_rng(5)
    scores, net = _stream(random, 3000)
    found = certify_stream(scores, net, 0.05, 0.05, select_fraction=select)
    assert found.threshold is not None
    assert 0.2 < found.kept < 0.9
    fresh, loss = _stream(random, 100_000)
    given_up = (loss * (fresh >= found.threshold)).mean()
    assert 0 < given_up < (found.given_up_upper or 1) <= 0.05
    more = certify_stream(scores, net, 0.08, 0.05, select_fraction=select)
    assert more.kept >= found.kept


def test_the_promise_on_the_stream_is_seldom_broken() -> None:
    random = np.random.default_rng(6)
    broken = 0
    for _ in range(40):
        scores, net = random.random(300), (random.random(300) < 0.1).astype(int)  # keeping a share q gives up q / 10
        found = certify_stream(scores, net, 0.05, 0.2)
        broken += found.threshold is not None and 1 - found.threshold > 0.5
    assert broken <= 16  # 8 expected at most; more has a probability below 0.2 %


def test_an_edge_that_is_as_good_keeps_all() -> None:
    found = certify_stream(np.linspace(0, 1, 500), np.zeros(500), 0.02, 0.05)
    assert (found.kept, found.threshold) == (1, 0)


def test_too_few_rows_show_nothing_of_a_stream() -> None:
    assert not certify_stream([0.5, 0.6], [0, 0], 0.05, 0.05).certified
    assert not certify_stream([], [], 0.05, 0.05).certified
    with pytest.raises(ConfigError, match="-1, 0 or 1"):
        certify_stream([0.5], [0.5], 0.05, 0.05)


def test_groups_share_delta() -> None:
    random = np.random.default_rng(0)
    scores, losses = random.random(2000), random.random(2000) < 0.01
    groups = ["cat" if row % 2 else "dog" for row in range(2000)]
    found = certify_groups(scores, losses, groups, 0.05, 0.1)
    assert found["cat"] == certify(scores[1::2], losses[1::2], 0.05, 0.05)
    assert set(found) == {"cat", "dog"}
    with pytest.raises(ConfigError, match="2000 scores, but 1 groups"):
        certify_groups(scores, losses, ["cat"], 0.05, 0.1)


def test_without_a_selection_part_every_score_is_a_threshold_of_the_stream() -> None:
    """Reference: one by one from where nothing is kept, until the first that is not shown."""
    random = np.random.default_rng(5)
    scores = random.random(350)
    net = np.where(scores < 0.4, random.random(350) < 0.5, 0).astype(int)
    found = certify_stream(scores, net, 0.08, 0.1, seed=3)
    order = np.random.default_rng(3).permutation(350)
    certified = np.inf
    for threshold in np.sort(scores)[::-1]:
        if betting((1 + net[order] * (scores[order] >= threshold)) / 2, 1.08 / 2) > 0.1:
            break
        certified = threshold
    assert found.kept == (scores >= certified).mean()
    assert round(found.kept * 350) % 7 not in (0, 4)  # not where a hundredth more would end
