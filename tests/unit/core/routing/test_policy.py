from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstline_core.errors import ConfigError, InvalidTensorError, RequestError
from firstline_core.routing.policy import (
    KINDS,
    MEASURES,
    Decision,
    Logistic,
    PolicyState,
    RowEvidence,
    auroc,
    before,
    energy,
    entropy,
    features,
    make_policy,
    margin,
    max_probability,
    parameters_of,
    score,
    temper,
    value_of,
)
from firstline_core.types import Privacy, Reason, Route, Tier


def evidence(
    route: Route = Route.AUTO, privacy: Privacy = Privacy.ANY, *, holds_model: bool = True, size_bytes: int = 10
) -> dict[str, Any]:
    return {"route": route, "privacy": privacy, "holds_model": holds_model, "size_bytes": size_bytes, "limit_bytes": 10}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (evidence(), None),
        (evidence(size_bytes=11), Decision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(holds_model=False), Decision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(Route.CLOUD), Decision(Tier.CLOUD, Reason.REQUESTED)),
        (evidence(Route.EDGE), Decision(Tier.EDGE, Reason.REQUESTED)),
        (evidence(Route.AUTO, Privacy.LOCAL_ONLY), Decision(Tier.EDGE, Reason.LOCAL_ONLY)),
        (evidence(Route.EDGE, Privacy.LOCAL_ONLY), Decision(Tier.EDGE, Reason.LOCAL_ONLY)),
    ],
)
def test_before(given: dict[str, Any], expected: Decision | None) -> None:
    assert before(**given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (evidence(Route.EDGE, size_bytes=11), "route=edge, but its payload of 11 bytes is over .* limit of 10"),
        (evidence(Route.EDGE, holds_model=False), "route=edge, but this device holds no edge variant"),
        (evidence(privacy=Privacy.LOCAL_ONLY, size_bytes=11), "privacy=local_only, but its payload"),
        (evidence(Route.CLOUD, Privacy.LOCAL_ONLY), "privacy=local_only and route=cloud exclude each other"),
    ],
)
def test_a_request_that_no_tier_may_answer_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        before(**given)


KEPT, ESCALATED = Decision(Tier.EDGE, Reason.CONFIDENT), Decision(Tier.CLOUD, Reason.UNCERTAIN)


def seen(
    score: float = 0.9, *, value: float = 0.1, certified: bool = False, now_s: float = 0.0, rest: float = 0.0
) -> RowEvidence:
    probabilities = np.array([score, 1 - score - rest, rest], np.float32)
    return RowEvidence(score, value, 0.8, certified, probabilities, now_s)


@pytest.mark.parametrize(
    ("score", "expected"),
    [(0.9, KEPT), (0.8, KEPT), (math.nextafter(0.8, 0), ESCALATED), (math.nan, ESCALATED)],
)
def test_certified_keeps_from_the_threshold_on(score: float, expected: Decision) -> None:
    assert make_policy("certified").decide(seen(score, certified=True), PolicyState()) == expected


class TestValue:
    def test_the_contract_takes_precedence_over_the_price(self) -> None:
        assert make_policy("value").decide(seen(0.7, value=0.0, certified=True), PolicyState()) == ESCALATED
        assert make_policy("value").decide(seen(math.nan, value=0.0, certified=True), PolicyState()) == ESCALATED

    def test_the_price_decides_on_accepted_rows(self) -> None:
        found = make_policy("value").decide(seen(0.9, certified=True), PolicyState())
        assert (found.tier, found.reason, found.demanded) == (Tier.CLOUD, Reason.VALUABLE, False)

    def test_without_a_certificate_no_escalation_is_demanded(self) -> None:
        assert not make_policy("value").decide(seen(0.1, value=0.9), PolicyState()).demanded

    def test_rows_below_the_least_value_are_accepted(self) -> None:
        policy = make_policy("value", least_value=0.2)
        assert policy.decide(seen(0.1, value=0.19), PolicyState()) == KEPT
        assert policy.decide(seen(0.9, value=0.2), PolicyState()).tier is Tier.CLOUD


def test_threshold_takes_the_number_given_or_the_bundles_own() -> None:
    assert make_policy("threshold", threshold=0.95).decide(seen(0.9), PolicyState()) == ESCALATED
    assert make_policy("threshold").decide(seen(0.9), PolicyState()) == KEPT


def test_edge_only_and_cloud_only_do_not_look() -> None:
    assert make_policy("edge_only").decide(seen(math.nan), PolicyState()) == Decision(Tier.EDGE, Reason.POLICY)
    assert make_policy("cloud_only").decide(seen(1.0), PolicyState()) == Decision(Tier.CLOUD, Reason.POLICY)


def test_random_escalates_its_share_and_repeats_itself() -> None:
    def drawn(seed: int) -> list[Tier]:
        state = PolicyState(draws=random.Random(seed))
        return [make_policy("random", rate=0.25).decide(seen(), state).tier for _ in range(2000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1).count(Tier.CLOUD) / 2000 == pytest.approx(0.25, abs=0.04)


class TestSedna:
    @pytest.mark.parametrize(
        ("score", "rest", "expected"),
        [(0.34, 0.33, ESCALATED), (0.98, 0.01, KEPT), (1.0, 0.0, KEPT)],
    )
    def test_spread_probabilities_are_hard_examples(self, score: float, rest: float, expected: Decision) -> None:
        assert make_policy("sedna").decide(seen(score, rest=rest), PolicyState()) == expected

    def test_its_formula(self) -> None:
        row = seen(0.7, rest=0.1)
        certainty = 1 + (0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1)) / math.log(3)
        assert make_policy("sedna", threshold=certainty - 1e-4).decide(row, PolicyState()) == KEPT
        assert make_policy("sedna", threshold=certainty + 1e-4).decide(row, PolicyState()) == ESCALATED

    @pytest.mark.parametrize("classes", [3, 32, 33, 1000])
    @pytest.mark.parametrize("odd", [-0.1, 1.1, math.nan])
    def test_values_outside_0_to_1_are_not_hard_examples(self, odd: float, classes: int) -> None:
        row = replace(seen(), probabilities=np.full(classes, 1 / classes, np.float32))
        assert make_policy("sedna").decide(row, PolicyState()) == ESCALATED
        row.probabilities[1] = odd
        assert make_policy("sedna").decide(row, PolicyState()) == KEPT


class TestGroundlight:
    def test_a_pause_follows_each_escalation(self) -> None:
        policy, state = make_policy("groundlight", threshold=0.9, pause_s=2.0), PolicyState()
        decisions = [policy.decide(seen(0.5, now_s=now_s), state) for now_s in (100.0, 101.0, 102.0, 102.1)]
        held = Decision(Tier.EDGE, Reason.BUDGET)
        assert decisions == [ESCALATED, held, held, ESCALATED]

    def test_the_confident_is_kept_and_starts_no_pause(self) -> None:
        policy, state = make_policy("groundlight"), PolicyState()
        assert policy.decide(seen(0.9, now_s=5.0), state) == KEPT
        assert policy.decide(seen(0.5, now_s=5.1), state) == ESCALATED

    def test_models_do_not_share_a_pause(self) -> None:
        policy = make_policy("groundlight")
        assert policy.decide(seen(0.5), PolicyState()) == policy.decide(seen(0.5), PolicyState()) == ESCALATED


def test_only_firstlines_own_policies_may_be_certified() -> None:
    assert {kind for kind in KINDS if make_policy(kind).certifies} == {"certified", "value"}
    assert "stream" not in make_policy("value").certifies
    assert [make_policy(kind).kind for kind in KINDS] == list(KINDS)


def test_each_policy_takes_its_parameters() -> None:
    for kind in KINDS:
        for name in parameters_of(kind):
            assert getattr(make_policy(kind, **{name: 0.125}), name) == 0.125


@pytest.mark.parametrize(
    ("learned", "score", "expected"), [(0.3, 0.9, 0.3), (None, 0.9, 0.1), (None, 7.0, 0.0), (None, math.nan, 1.0)]
)
def test_the_value_is_learned_or_supposed(learned: float | None, score: float, expected: float) -> None:
    assert value_of(learned, score) == pytest.approx(expected)


ROWS = np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], np.float32)
SCORES: Any = ["max_probability", "margin", "entropy"]


def test_the_scores_by_hand() -> None:
    np.testing.assert_allclose(max_probability(ROWS), [0.7, 0.4, 1, 1 / 3])
    np.testing.assert_allclose(margin(ROWS), [0.5, 0, 1, 0], atol=1e-7)
    by_hand = [1 + sum(p * np.log(p) for p in row if p > 0) / np.log(3) for row in ROWS.tolist()]
    np.testing.assert_allclose(entropy(ROWS), by_hand, atol=1e-6)


def test_tempering_probabilities_is_tempering_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    expected = np.exp(logits / 2.5) / np.exp(logits / 2.5).sum(axis=1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(temper(probabilities, 2.5), expected, rtol=1e-4)


def test_a_quantised_row_is_normalised() -> None:
    found = temper(np.array([[0.5, 0.25, 0.0]], np.float32), 1.0)
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3, 0]], atol=1e-6)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_nan_scores_nan_alone(kind: Any, bad: float) -> None:
    rows = ROWS.copy()
    rows[1, 0] = bad
    with np.errstate(invalid="ignore"):
        found = score(kind, rows)
    assert np.isnan(found[1])
    np.testing.assert_array_equal(np.delete(found, 1), np.delete(score(kind, ROWS), 1))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 2, 2)])
def test_a_score_needs_a_matrix_of_classes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTensorError, match=r"\[rows, classes >= 2\]"):
        score("margin", np.ones(shape, np.float32))


def test_energy_is_the_log_of_the_summed_exponentials() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(energy(logits), [np.log(np.exp([1, 2, 3]).sum()), 1000], rtol=1e-6)
    np.testing.assert_allclose(energy(logits, 2.0)[0], 2 * np.log(np.exp([0.5, 1, 1.5]).sum()), rtol=1e-6)


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    random = np.random.default_rng(0)
    scores, failed = random.integers(0, 6, 80) / 8, random.random(80) < 0.3
    pairs = [(good > bad) + (good == bad) / 2 for good in scores[~failed] for bad in scores[failed]]
    assert auroc(scores, failed) == pytest.approx(np.mean(pairs))
    assert auroc(np.array([0.9, 0.1]), np.array([False, True])) == 1
    assert auroc(scores, np.zeros(80, np.bool_)) is None


def test_the_usual_score_equals_the_tempered_one() -> None:
    rows = np.random.default_rng(3).dirichlet(np.full(10, 0.2), 500).astype(np.float32)
    for found in (rows, np.zeros((1, 3), np.float32), np.array([[np.nan, 1.0]], np.float32)):
        np.testing.assert_array_equal(score("max_probability", found), max_probability(temper(found, 1.0)))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("classes", [2, 10, 32])
def test_a_row_scores_the_same_alone_and_in_a_batch(classes: int, temperature: float) -> None:
    """Of an overconfident model a large share of the rows ties, and a certificate may end just there."""
    random = np.random.default_rng(5)
    logits = random.normal(size=(500, classes)) * random.choice([1, 5, 30], size=(500, 1))
    rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    rows = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    alone = [float(score("max_probability", row[None], temperature=temperature)[0]) for row in rows]
    assert alone == score("max_probability", rows, temperature=temperature).tolist()


SATURATED_ROWS = np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 255 / 256]], np.float32)


def test_features_by_hand() -> None:
    found = features(SATURATED_ROWS)
    np.testing.assert_allclose(found[0, [0, 2, 3]], [0.5, np.log(0.2), np.log(0.7)], atol=1e-5)
    np.testing.assert_array_equal(found[:, MEASURES:], [[1, 0, 0], [0, 0, 1]])
    assert found[1, 2] == pytest.approx(np.log(1 / 512))  # what a quantised softmax rounds to zero


def test_many_classes_have_no_one_hot_features() -> None:
    assert features(np.full((2, 1000), 0.001, np.float32)).shape == (2, MEASURES)


def test_a_logistic_score_is_one_minus_the_probability() -> None:
    weights = (-2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    found = Logistic(weights, 0.5).score(SATURATED_ROWS)
    np.testing.assert_allclose(found, 1 - 1 / (1 + np.exp([-0.5, 1.5])), rtol=1e-4)
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="7 weights, but 4 classes give 8"):
        Logistic(weights, 0.5).score(np.full((1, 4), 0.25, np.float32))
