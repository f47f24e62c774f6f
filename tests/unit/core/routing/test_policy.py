import math
import random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from firstline_core.errors import ConfigError, RequestError
from firstline_core.routing.certificate import Certificate, Contract
from firstline_core.routing.policy import (
    KINDS,
    Logistic,
    PolicyState,
    RowEvidence,
    TierDecision,
    before,
    covered,
    make_policy,
    parameters_of,
    value_of,
)
from firstline_core.types import PROBABILITIES, Privacy, Reason, Route, Tier


def evidence(
    route: Route = Route.AUTO,
    privacy: Privacy = Privacy.ANY,
    *,
    holds_model: bool = True,
    size_bytes: int = 10,
    partial: bool = False,
) -> dict[str, Any]:
    request = {"route": route, "privacy": privacy, "size_bytes": size_bytes, "partial": partial}
    return request | {"holds_model": holds_model, "limit_bytes": 10}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (evidence(), None),
        (evidence(size_bytes=11), TierDecision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(holds_model=False), TierDecision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(Route.CLOUD), TierDecision(Tier.CLOUD, Reason.REQUESTED)),
        (evidence(Route.EDGE), TierDecision(Tier.EDGE, Reason.REQUESTED)),
        (evidence(Route.AUTO, Privacy.LOCAL_ONLY), TierDecision(Tier.EDGE, Reason.LOCAL_ONLY)),
        (evidence(Route.EDGE, Privacy.LOCAL_ONLY), TierDecision(Tier.EDGE, Reason.LOCAL_ONLY)),
        (evidence(partial=True), TierDecision(Tier.EDGE, Reason.PARTIAL_INPUTS)),
        (evidence(Route.EDGE, partial=True), TierDecision(Tier.EDGE, Reason.REQUESTED)),
    ],
)
def test_before(arguments: dict[str, Any], expected: TierDecision | None) -> None:
    assert before(**arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (evidence(Route.EDGE, size_bytes=11), "route=edge, but its payload of 11 bytes is over .* limit of 10"),
        (evidence(Route.EDGE, holds_model=False), "route=edge, but this device holds no edge variant"),
        (evidence(privacy=Privacy.LOCAL_ONLY, size_bytes=11), "privacy=local_only, but its payload"),
        (evidence(Route.CLOUD, Privacy.LOCAL_ONLY), "privacy=local_only and route=cloud exclude each other"),
        (evidence(Route.CLOUD, partial=True), "only the inputs of this device's model, and route=cloud asks"),
        (evidence(size_bytes=11, partial=True), "and its payload is over this device's limit of 10 asks"),
    ],
)
def test_a_request_that_no_tier_may_answer_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        before(**arguments)


KEPT, ESCALATED = TierDecision(Tier.EDGE, Reason.CONFIDENT), TierDecision(Tier.CLOUD, Reason.UNCERTAIN)


def seen(
    score: float = 0.9, *, value: float = 0.1, certified: bool = False, now_s: float = 0.0, rest: float = 0.0
) -> RowEvidence:
    outputs = {PROBABILITIES: np.array([[score, 1 - score - rest, rest]], np.float32)}
    return RowEvidence(score, value, 0.8, certified, outputs, now_s)


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


CERTIFICATE = Certificate(
    contract="disagreement",
    epsilon=0.05,
    delta=0.05,
    threshold=0.8,
    n=1000,
    kept=0.5,
    risk_upper=0.04,
    edge_digest="a" * 64,
    full_digest="b" * 64,
    score_digest="c" * 64,
)


@pytest.mark.parametrize(
    ("contract", "threshold", "expected"),
    [
        ("disagreement", 0.79, False),
        ("disagreement", 0.8, True),
        ("disagreement", 0.81, True),
        ("stream", 0.79, False),
        ("stream", 0.8, True),
        ("stream", 0.81, False),  # a stricter threshold may lose rows that the edge answers better
    ],
)
def test_a_certificate_covers_answers_at_its_threshold(contract: Contract, threshold: float, expected: bool) -> None:
    certificate = replace(CERTIFICATE, contract=contract)
    assert covered(KEPT, threshold, certificate) is expected
    assert not covered(KEPT, threshold, None)
    assert not covered(TierDecision(Tier.EDGE, Reason.BUDGET), threshold, certificate)


def test_a_score_at_the_threshold_is_accepted() -> None:
    for kind in ("certified", "threshold"):
        assert make_policy(kind).decide(seen(0.8), PolicyState()) == KEPT
        assert make_policy(kind).decide(seen(math.nextafter(0.8, 0.0)), PolicyState()) == ESCALATED
    worthless = seen(0.8, value=0.0, certified=True)
    assert make_policy("value", least_value=0.1).decide(worthless, PolicyState()) == KEPT


def test_no_certificate_covers_what_its_policy_does_not_keep() -> None:
    assert make_policy("certified").uncertified("stream") == make_policy("value").uncertified("disagreement") == ""
    assert "needs policy.kind = certified" in make_policy("value").uncertified("stream")
    assert "which no certificate covers" in make_policy("threshold").uncertified()


def test_threshold_takes_the_number_given_or_the_bundles_own() -> None:
    assert make_policy("threshold", threshold=0.95).decide(seen(0.9), PolicyState()) == ESCALATED
    assert make_policy("threshold").decide(seen(0.9), PolicyState()) == KEPT


def test_edge_only_and_cloud_only_do_not_look() -> None:
    assert make_policy("edge_only").decide(seen(math.nan), PolicyState()) == TierDecision(Tier.EDGE, Reason.POLICY)
    assert make_policy("cloud_only").decide(seen(1.0), PolicyState()) == TierDecision(Tier.CLOUD, Reason.POLICY)


def test_random_escalates_its_share_and_repeats_itself() -> None:
    def drawn(seed: int) -> list[Tier]:
        state = PolicyState(draws=random.Random(seed))
        return [make_policy("random", rate=0.25).decide(seen(), state).tier for _ in range(2000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1).count(Tier.CLOUD) / 2000 == pytest.approx(0.25, abs=0.04)


class TestSedna:
    @pytest.mark.parametrize(
        ("score", "rest", "expected"), [(0.34, 0.33, ESCALATED), (0.98, 0.01, KEPT), (1.0, 0.0, KEPT)]
    )
    def test_spread_probabilities_are_hard_examples(self, score: float, rest: float, expected: TierDecision) -> None:
        assert make_policy("sedna").decide(seen(score, rest=rest), PolicyState()) == expected

    def test_its_formula(self) -> None:
        row = seen(0.7, rest=0.1)
        certainty = 1 + (0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1)) / math.log(3)
        assert make_policy("sedna", threshold=certainty - 1e-4).decide(row, PolicyState()) == KEPT
        assert make_policy("sedna", threshold=certainty + 1e-4).decide(row, PolicyState()) == ESCALATED

    @pytest.mark.parametrize("classes", [3, 32, 33, 1000])
    @pytest.mark.parametrize("odd", [-0.1, 1.1, math.nan])
    def test_values_outside_0_to_1_are_not_hard_examples(self, odd: float, classes: int) -> None:
        probabilities = np.full((1, classes), 1 / classes, np.float32)
        row = replace(seen(), outputs={PROBABILITIES: probabilities})
        assert make_policy("sedna").decide(row, PolicyState()) == ESCALATED
        probabilities[0, 1] = odd
        assert make_policy("sedna").decide(row, PolicyState()) == KEPT

    @pytest.mark.parametrize(("score", "expected"), [(0.9, KEPT), (0.1, ESCALATED)])
    def test_other_tasks_are_decided_by_their_score(self, score: float, expected: TierDecision) -> None:
        row = replace(seen(score), outputs={"values": np.ones((1, 2), np.float32)})
        assert make_policy("sedna", threshold=0.5).decide(row, PolicyState()) == expected


class TestGroundlight:
    def test_a_pause_follows_each_escalation(self) -> None:
        policy, state = make_policy("groundlight", threshold=0.9, pause_s=2.0), PolicyState()
        decisions = [policy.decide(seen(0.5, now_s=now_s), state) for now_s in (100.0, 101.0, 102.0, 102.1)]
        paused = TierDecision(Tier.EDGE, Reason.BUDGET)
        assert decisions == [ESCALATED, paused, paused, ESCALATED]

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
            assert make_policy(kind, **{name: 0.125}).decide.keywords == {name: 0.125}


@pytest.mark.parametrize(
    ("learned", "score", "expected"), [(0.3, 0.9, 0.3), (None, 0.9, 0.1), (None, 7.0, 0.0), (None, math.nan, 1.0)]
)
def test_the_value_is_learned_or_supposed(learned: float | None, score: float, expected: float) -> None:
    assert value_of(learned, score) == pytest.approx(expected)


def test_a_logistic_fit_gives_probabilities_of_a_loss() -> None:
    features = np.array([[1, 0.5], [2, 0]], np.float32)
    found = Logistic((-2.0, 3.0), 0.5).losses(features)
    np.testing.assert_allclose(found, 1 / (1 + np.exp([0.0, 3.5])), rtol=1e-4)
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="2 weights, but the model's answers give 3 features"):
        Logistic((-2.0, 3.0), 0.5).losses(np.ones((1, 3), np.float32))
