import math
from typing import Any, get_args

import numpy as np
import pytest

from firstline_core.errors import ConfigError, RequestError
from firstline_core.routing.policy import (
    Logistic,
    PolicyKind,
    RowEvidence,
    TierDecision,
    auroc,
    before,
    make_policy,
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
        (evidence(size_bytes=11), TierDecision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(holds_model=False), TierDecision(Tier.CLOUD, Reason.HEAVY)),
        (evidence(Route.CLOUD), TierDecision(Tier.CLOUD, Reason.REQUESTED)),
        (evidence(Route.EDGE), TierDecision(Tier.EDGE, Reason.REQUESTED)),
        (evidence(Route.AUTO, Privacy.LOCAL_ONLY), TierDecision(Tier.EDGE, Reason.LOCAL_ONLY)),
        (evidence(Route.EDGE, Privacy.LOCAL_ONLY), TierDecision(Tier.EDGE, Reason.LOCAL_ONLY)),
    ],
)
def test_before(given: dict[str, Any], expected: TierDecision | None) -> None:
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


KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
KEPT, ESCALATED = TierDecision(Tier.EDGE, Reason.CONFIDENT), TierDecision(Tier.CLOUD, Reason.UNCERTAIN)


def seen(score: float = 0.9, *, value: float = 0.1, certified: bool = False) -> RowEvidence:
    return RowEvidence(score, value, 0.8, certified)


class TestValue:
    def test_the_contract_takes_precedence_over_the_price(self) -> None:
        assert make_policy("value").decide(seen(0.7, value=0.0, certified=True)) == ESCALATED
        assert make_policy("value").decide(seen(math.nan, value=0.0, certified=True)) == ESCALATED

    def test_the_price_decides_on_accepted_rows(self) -> None:
        found = make_policy("value").decide(seen(0.9, certified=True))
        assert (found.tier, found.reason, found.demanded) == (Tier.CLOUD, Reason.VALUABLE, False)

    def test_without_a_certificate_no_escalation_is_demanded(self) -> None:
        assert not make_policy("value").decide(seen(0.1, value=0.9)).demanded

    def test_rows_below_the_least_value_are_accepted(self) -> None:
        policy = make_policy("value", least_value=0.2)
        assert policy.decide(seen(0.1, value=0.19)) == KEPT
        assert policy.decide(seen(0.9, value=0.2)).tier is Tier.CLOUD


def test_threshold_takes_the_number_given() -> None:
    assert make_policy("threshold", threshold=0.95).decide(seen(0.9)) == ESCALATED
    assert make_policy("threshold", threshold=0.85).decide(seen(0.9)) == KEPT


def test_edge_only_and_cloud_only_do_not_look() -> None:
    assert make_policy("edge_only").decide(seen(math.nan)) == TierDecision(Tier.EDGE, Reason.POLICY)
    assert make_policy("cloud_only").decide(seen(1.0)) == TierDecision(Tier.CLOUD, Reason.POLICY)


def test_only_firstlines_own_policies_may_be_certified() -> None:
    assert {kind for kind in KINDS if make_policy(kind).certifies} == {"certified", "value"}
    assert "stream" not in make_policy("value").certifies
    assert [make_policy(kind).kind for kind in KINDS] == list(KINDS)


@pytest.mark.parametrize(
    ("learned", "score", "expected"), [(0.3, 0.9, 0.3), (None, 0.9, 0.1), (None, 7.0, 0.0), (None, math.nan, 1.0)]
)
def test_the_value_is_learned_or_supposed(learned: float | None, score: float, expected: float) -> None:
    assert value_of(learned, score) == pytest.approx(expected)


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    random = np.random.default_rng(0)
    scores, failed = random.integers(0, 6, 80) / 8, random.random(80) < 0.3
    pairs = [(good > bad) + (good == bad) / 2 for good in scores[~failed] for bad in scores[failed]]
    assert auroc(scores, failed) == pytest.approx(np.mean(pairs))
    assert auroc(np.array([0.9, 0.1]), np.array([False, True])) == 1
    assert auroc(scores, np.zeros(80, np.bool_)) is None


def test_a_logistic_fit_gives_probabilities_of_a_loss() -> None:
    features = np.array([[1, 0.5], [2, 0]], np.float32)
    found = Logistic((-2.0, 3.0), 0.5).losses(features)
    np.testing.assert_allclose(found, 1 / (1 + np.exp([0.0, 3.5])), rtol=1e-4)
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="2 weights, but the model's answers give 3 features"):
        Logistic((-2.0, 3.0), 0.5).losses(np.ones((1, 3), np.float32))
