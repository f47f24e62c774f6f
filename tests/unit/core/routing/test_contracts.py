import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing.bounds import betting, upper_bound
from firstline_core.routing.certification import (
    CertificationResult,
    Start,
    between,
    certify,
    split,
    start_shares,
    starts_at,
    uncertified,
)
from firstline_core.routing.contracts import (
    EventResult,
    EventRows,
    EventsResult,
    certify_events,
    certify_groups,
    certify_stream,
    certify_weighted,
    event_starts,
    net_loss,
)


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
    part, rest = split(3000, select, 0)
    grid = scores[part] if select else None
    found = certify_stream(scores[rest], net[rest], 0.05, 0.05, grid=grid)
    assert 0.2 < found.kept < 0.9
    fresh, loss = _stream(random, 100_000)
    given_up = (loss * (fresh >= found.threshold)).mean()
    assert 0 < given_up < (found.risk_upper or 1) <= 0.05
    more = certify_stream(scores[rest], net[rest], 0.08, 0.05, grid=grid)
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
    assert certify_stream(np.linspace(0, 1, 500), np.zeros(500), 0.02, 0.05, grid=np.linspace(0, 1, 130)) == found


def test_too_few_rows_certify_no_stream() -> None:
    """78 rows of half a loss show a mean of at most 0.525: (1 + 0.75 * 0.025 / 0.475) ** 78 is 20.5."""
    for scores in ([], [np.nan], [0.5, 0.6]):
        found = certify_stream(scores, np.zeros(len(scores)), 0.05, 0.05)
        assert found == uncertified(len(scores), 78 - len(scores))
    assert certify_stream(np.ones(90), np.zeros(90), 0.02, 0.05, grid=[np.nan]) == uncertified(90, 108)
    with pytest.raises(ConfigError, match="from -1 to 1"):
        certify_stream([0.5], [1.5], 0.05, 0.05)


def test_the_stream_is_proved_at_exactly_its_delta() -> None:
    p_value = betting(np.full(90, 0.5), 0.525)
    assert certify_stream(np.ones(90), np.zeros(90), 0.05, p_value * 1.001).certified
    assert not certify_stream(np.ones(90), np.zeros(90), 0.05, p_value * 0.95).certified
    net = np.r_[1, np.zeros(89)]
    one_lost = betting((1 + net[np.random.default_rng(0).permutation(90)]) / 2, 0.525)
    assert p_value < one_lost * 0.95
    assert certify_stream(np.ones(90), net, 0.05, one_lost * 1.001).certified
    assert certify_stream(np.ones(90), net, 0.05, one_lost * 0.95) == uncertified(90, 1)


def test_a_grid_places_a_hundred_thresholds() -> None:
    """Reference: one by one from where nothing is kept, until the first that is not shown."""
    random = np.random.default_rng(7)
    scores, grid = random.random(1500), random.random(230)
    net = np.where(scores < 0.4, random.random(1500) < 0.5, 0).astype(int)
    order = np.random.default_rng(0).permutation(1500)
    descending, certified = np.sort(grid)[::-1], np.inf
    for percent in range(1, 101):
        threshold = descending[math.ceil(percent * 230 / 100) - 1]
        if betting((1 + net[order] * (scores[order] >= threshold)) / 2, 1.08 / 2) > 0.1:
            break
        certified = threshold
    found = certify_stream(scores, net, 0.08, 0.1, grid=grid)
    assert found.kept == (scores >= certified).mean()


def test_many_rows_give_up_500_as_the_grid() -> None:
    random = np.random.default_rng(5)
    scores = random.random(6000)
    net = np.where(scores < 0.4, random.random(6000) < 0.5, 0).astype(int)
    part, rest = split(6000, 1 / 12, 2)
    found = certify_stream(scores, net, 0.08, 0.1, seed=2)
    assert (found.n, found.certified) == (5500, True)
    assert found == certify_stream(scores[rest], net[rest], 0.08, 0.1, seed=2, grid=scores[part])


def test_graded_net_losses_are_bounded_by_their_mean() -> None:
    random = np.random.default_rng(0)
    scores = random.random(3000)
    net = net_loss(random.random(3000) * scores, np.full(3000, 0.5))
    found = certify_stream(scores, net, 0.02, 0.05)
    assert found.certified and 0 < found.kept < 0.5
    assert (net * (scores >= found.threshold)).mean() <= found.risk_upper <= 0.02


def test_groups_share_delta() -> None:
    random = np.random.default_rng(0)
    scores, losses = random.random(2000), random.random(2000) < 0.01
    groups = ["cat" if row % 2 else "dog" for row in range(2000)]
    found = certify_groups(scores, losses, groups, 0.05, 0.1)
    assert found["cat"] == certify(scores[1::2], losses[1::2], 0.05, 0.05)
    assert set(found) == {"cat", "dog"}
    starts = (Start(0.999, 1.0),)  # too strict to prove anything
    placed = certify_groups(scores, losses, groups, 0.05, 0.1, starts={"cat": starts})
    assert placed["cat"] == certify(scores[1::2], losses[1::2], 0.05, 0.05, starts=starts)
    assert placed["dog"] == found["dog"] and found["cat"].certified and not placed["cat"].certified
    with pytest.raises(ConfigError, match="2000 scores, but 1 groups"):
        certify_groups(scores, losses, ["cat"], 0.05, 0.1)


def test_an_epsilon_below_rounding_certifies_no_stream() -> None:
    found = certify_stream(np.arange(10.0), np.zeros(10), 1e-17, 0.05)
    assert not found.certified and found.n_needed > 1e12


def test_every_score_is_a_threshold_of_the_stream() -> None:
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
    losses = (1 + net[order] * (scores[order] >= certified)) / 2
    upper = 2 * upper_bound(lambda mean: betting(losses, mean), 0.1) - 1
    threshold = between(float(scores[scores < certified].max()), float(certified))
    kept = (scores >= certified).mean()
    assert found == CertificationResult(True, threshold, kept, pytest.approx(upper), 350, 0)
    assert 0 < upper < 0.08
    assert round(found.kept * 350) % 7 not in (0, 4)  # not where a hundredth more would end


def drawn(n: int, seed: int, risk_below: float) -> tuple[np.ndarray, ...]:
    """Rows of a population whose scores are uniform; those below 0.5 err, and are drawn five times as often."""
    random = np.random.default_rng(seed)
    scores = random.random(12 * n)
    losses = (random.random(12 * n) < np.where(scores < 0.5, risk_below, 0.005)).astype(float)
    propensities = np.where(scores < 0.5, 0.5, 0.1)
    taken = np.flatnonzero(random.random(12 * n) < propensities)[:n]
    return scores[taken], losses[taken], 1 / propensities[taken]


def test_equal_weights_have_no_effect() -> None:
    scores, losses, _ = drawn(1000, 0, 0.2)
    part, rest = split(1000, 0.2, 3)
    starts = starts_at(scores[part], start_shares(len(rest)))
    plain = certify(scores[rest], losses[rest], 0.05, 0.1, starts=starts, seed=3)
    assert certify_weighted(scores, losses, np.full(1000, 7.0), 0.05, 0.1, select_fraction=0.2, seed=3) == plain


def test_weighted_losses_by_hand() -> None:
    """A row of weight w, of at most 1, has the loss epsilon + w * (loss - epsilon); equal weights leave the losses."""
    scores, losses = np.linspace(1, 0.1, 400), (np.arange(400) % 50 == 49).astype(float)
    weights = np.where(np.arange(400) % 2, 8.0, 2.0)
    tested = 0.1 + np.where(np.arange(400) % 2, 1, 0.25) * (losses - 0.1)
    plain = certify(scores, tested, 0.1, 0.05)
    found = certify_weighted(scores, losses, weights, 0.1, 0.05)
    kept = weights[scores >= plain.threshold].sum() / weights.sum()
    assert found == replace(plain, kept=pytest.approx(kept)) and found.certified
    event = certify_events({"a": EventRows(scores, losses, 0.1, 0.05, weights)}, starts=[Start(0.5, 1.0)])
    alone = certify(scores, tested, 0.1, 0.05, starts=[Start(0.5, 1.0)])
    assert (event.threshold, event.risk_upper) == (alone.threshold, alone.risk_upper)
    ties = certify_weighted(np.ones(400), np.zeros(400), weights, 0.1, 0.05)
    assert (ties.threshold, ties.kept) == (1, 1)


def test_oversampled_rows_are_weighted_down() -> None:
    # Everything may be kept: 6 % are wrong below 0.5, and 0.5 % above, 3.25 % together.
    scores, losses, weights = drawn(2000, 1, 0.06)
    weighted = certify_weighted(scores, losses, weights, 0.05, 0.1)
    plain = certify(scores, losses, 0.05, 0.1)
    assert weighted.certified and weighted.risk_upper is not None
    assert weighted.kept > plain.kept  # the plain one takes the errors for as common as they were drawn
    assert weighted.kept == pytest.approx(1 - (weighted.threshold or 0.0), abs=0.05)
    assert weighted.risk_upper <= 0.05


def test_weights_correct_a_draw_that_hides_errors() -> None:
    # Errors below 0.5 are drawn rarely: counted plainly, everything would seem to hold.
    broken = {"weighted": 0, "events": 0, "plain": 0}
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
            ("events", certify_events({"a": EventRows(*rows, 0.05, 0.1, 1 / propensities[taken])})),
            ("plain", certify(*rows, 0.05, 0.1)),
        ):
            kept_below = max(0.0, 0.5 - (1.0 if found.threshold is None else found.threshold))
            broken[name] += 0.12 * kept_below / (0.5 + kept_below) > 0.05
    assert max(broken["weighted"], broken["events"]) <= 6
    assert broken["plain"] > 15


@pytest.mark.parametrize(("weights", "error"), [([1, 0], "above 0"), ([1, np.nan], "above 0"), ([1], "one each a row")])
def test_invalid_weights_are_refused(weights: list[float], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        certify_weighted([0.5, 0.6], [0, 1], weights, 0.05, 0.1)


def _event(rows: int, errors: int, epsilon: float = 0.05, delta: float = 0.05) -> EventRows:
    """Rows with scores 1, 2, ... of which the lowest are lost."""
    return EventRows(np.arange(rows) + 1.0, np.arange(rows) < errors, epsilon, delta)


def test_a_threshold_of_events_holds_for_the_hardest_of_them() -> None:
    found = certify_events({"a": _event(400, 100), "b": _event(400, 40, 0.1)}, starts=[Start(200.0, 1.0)])
    alone = certify(*((one := _event(400, 100)).scores, one.losses), 0.05, 0.05, starts=[Start(200.0, 1.0)])
    assert found.threshold == alone.threshold
    assert found.events["a"].risk_upper == alone.risk_upper
    assert (found.events["b"].risk_upper or 1) < 0.1
    assert found.risk_upper == max(one.risk_upper or 1 for one in found.events.values())


def test_the_share_of_an_event_that_is_kept_is_the_population_s() -> None:
    scores, losses, weights = drawn(4000, 2, 0.3)
    above = scores > 0.5
    found = certify_events(
        {
            "a": EventRows(scores, losses, 0.05, 0.1, weights),
            "b": EventRows(scores[above], losses[above], 0.05, 0.1, weights[above]),
        },
        starts=[Start(0.8, 1.0)],
    )
    # Five of six rows that were drawn are below 0.5, and half of the population.
    assert found.events["a"].kept == pytest.approx(1 - found.threshold, abs=0.03)
    assert (scores >= found.threshold).mean() < found.events["a"].kept - 0.05
    assert found.events["b"].kept == 1
    alone = certify_events({"a": EventRows(scores, losses, 0.05, 0.1, weights)})
    assert alone.certified and alone.kept == pytest.approx(alone.events["a"].kept)


def test_each_event_is_proved_at_its_own_delta() -> None:
    """Without error, 45 rows prove 5 % at 90 %, and 90 rows at 99 %: 0.95 ** 89 is above 0.01."""
    likely, sure = _event(400, 0, delta=0.1), [_event(rows, 0, delta=0.01) for rows in (60, 89, 90)]
    short, almost, enough = (certify_events({"likely": likely, "sure": one}, starts=[Start(0.0, 1.0)]) for one in sure)
    assert (short.certified, short.n_needed) == (False, 30)
    assert (almost.certified, almost.n_needed) == (False, 1)
    assert short == EventsResult(
        False, None, 0.0, None, 460, 30,
        {"likely": EventResult(0.05, 0.1, 400, 0.0, None, 0), "sure": EventResult(0.05, 0.01, 60, 0.0, None, 30)},
    )  # fmt: skip
    assert (enough.certified, enough.n, enough.kept, enough.n_needed) == (True, 490, 1, 0)
    assert [(one.n, one.kept, one.n_needed) for one in enough.events.values()] == [(400, 1, 0), (90, 1, 0)]
    assert enough.events["likely"].risk_upper == pytest.approx(1 - 0.1 ** (1 / 400))
    assert enough.events["sure"].risk_upper == pytest.approx(1 - 0.01 ** (1 / 90))


def test_a_threshold_of_events_keeps_only_tested_rows_of_each() -> None:
    """After 100 rows each, event "a" has its next row at 0.4 and event "b" at 0.2; those rows are lost."""
    losses = np.repeat([0, 1], [100, 50])
    events = {
        name: EventRows(np.repeat([0.5, low], [100, 50]), losses, 0.05, 0.05) for name, low in (("a", 0.4), ("b", 0.2))
    }
    found = certify_events(events, starts=[Start(0.5, 1.0)])
    assert (found.threshold, found.kept, found.n) == (0.45, 200 / 300, 300)


def test_too_few_rows_of_one_event_certify_nothing() -> None:
    """59 rows without error prove 5 % at 95 %, 45 prove it at 90 %."""
    promises = {"missed person": _event(400, 0), "missed bicycle": _event(12, 0, delta=0.1)}
    found = certify_events(promises, starts=[Start(0.0, 1.0)])
    assert (found.certified, found.n_needed) == (False, 33)
    assert [(one.n, one.n_needed) for one in found.events.values()] == [(400, 0), (12, 33)]
    assert certify_events(promises | {"missed bicycle": _event(45, 0, delta=0.1)}, starts=[Start(0.0, 1.0)]).certified
    assert certify_events(promises | {"missed bicycle": _event(0, 0)}, starts=[Start(0.0, 1.0)]).n_needed == 59
    assert certify_events(promises, starts=()).n_needed == 33


def test_rows_without_a_score_are_not_enough_for_an_event() -> None:
    found = certify_events({"missed person": EventRows(np.full(400, np.nan), np.zeros(400), 0.05, 0.05)})
    assert (found.n_needed, found.events["missed person"].n_needed) == (59, 59)


def test_events_without_starts_are_one_event() -> None:
    with pytest.raises(ConfigError, match=r"set one aside with --select 0\.1"):
        certify_events({"a": _event(100, 0), "b": _event(100, 0)})
    with pytest.raises(ConfigError, match="names at least one"):
        certify_events({})
    with pytest.raises(ConfigError, match=r"share out 2 of delta"):
        certify_events({"a": _event(100, 0)}, starts=[Start(0.5, 2.0)])


def test_events_start_where_each_of_them_has_enough_rows() -> None:
    """Of 600 rows 120 are enough, of 80 it takes 40: half of them. At 1 %, it takes 407."""
    bounds = [(0.1, 0.1)] * 2
    starts = event_starts([np.arange(100.0), np.arange(40.0)], [600, 80], bounds)
    assert starts[0] == Start(20.0, pytest.approx(0.97))
    assert [start.threshold for start in starts] == [20.0, 0.0]
    assert [start.threshold for start in event_starts([np.arange(100.0)] * 2, [1000, 1000], bounds)] == [95, 80, 50, 0]
    assert event_starts([np.arange(100.0)] * 2, [1000, 1000], [(0.1, 0.1), (0.01, 0.1)])[0].threshold == 59
    assert event_starts([[], np.arange(10.0)], [3, 90], bounds)[0].threshold == 0
    assert event_starts([[], np.arange(10.0) + 5, np.arange(10.0)], [3, 90, 90], [bounds[0]] * 3)[0].threshold == 0
    assert event_starts([[], []], [3, 4], bounds) == ()
