"""Scores and the routing policy over everything they can be given."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from firstline_core.errors import RequestError
from firstline_core.routing.policy import CERTIFIED, PolicyState, RowEvidence, TierDecision, before
from firstline_core.tasks.classification import score, temper
from firstline_core.types import Privacy, Reason, Route, Tier

KINDS: Any = ["max_probability", "margin", "entropy"]
TEMPERATURES = st.floats(0.05, 50)
PROBABILITIES = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.floats(0, 1, width=32) | st.integers(0, 255).map(lambda q: q / 256),
)


@given(PROBABILITIES, TEMPERATURES)
def test_tempered_rows_are_distributions_in_the_same_order(probabilities: Any, temperature: float) -> None:
    found = temper(probabilities, temperature)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert ((found >= 0) & (found <= 1)).all()
    for before_row, after_row in zip(probabilities, found, strict=True):
        order = np.argsort(before_row, kind="stable")
        assert (np.diff(after_row[order]) >= 0).all()


@given(PROBABILITIES, TEMPERATURES, st.sampled_from(KINDS))
def test_scores_are_in_range_and_independent_of_other_rows(probabilities: Any, temperature: float, kind: Any) -> None:
    found = score(kind, probabilities, temperature=temperature)
    assert found.shape == (len(probabilities),)
    assert found.dtype == np.float32
    assert ((found >= 0) & (found <= 1)).all()
    alone = np.concatenate([score(kind, row[None], temperature=temperature) for row in probabilities])
    np.testing.assert_allclose(found, alone, rtol=1e-6, atol=1e-7)


@given(PROBABILITIES, TEMPERATURES, st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_scores_are_independent_of_label_order(probabilities: Any, temperature: float, kind: Any, random: Any) -> None:
    columns = list(range(probabilities.shape[1]))
    random.shuffle(columns)
    moved = score(kind, probabilities[:, columns], temperature=temperature)
    np.testing.assert_allclose(moved, score(kind, probabilities, temperature=temperature), rtol=1e-5, atol=2e-6)


EVIDENCE = st.fixed_dictionaries(
    {
        "route": st.sampled_from(Route),
        "privacy": st.sampled_from(Privacy),
        "holds_model": st.booleans(),
        "size_bytes": st.integers(0, 3),
        "limit_bytes": st.integers(0, 3),
    }
)


def by_score(found: float, threshold: float) -> TierDecision:
    evidence = RowEvidence(found, 0.0, threshold, has_certificate=False, outputs={}, now_s=0.0)
    return CERTIFIED.decide(evidence, PolicyState())


@given(EVIDENCE, st.floats(), st.floats())
def test_one_tier_answers_each_request_in_its_bounds(evidence: dict[str, Any], found: float, threshold: float) -> None:
    route, privacy = evidence["route"], evidence["privacy"]
    heavy = not evidence["holds_model"] or evidence["size_bytes"] > evidence["limit_bytes"]
    try:
        early = before(**evidence)
    except RequestError:
        bound = privacy is Privacy.LOCAL_ONLY or route is Route.EDGE
        assert bound  # what may leave the device always has a way
        return
    decision = early or by_score(found, threshold)
    assert decision.tier in (Tier.EDGE, Tier.CLOUD)
    if privacy is Privacy.LOCAL_ONLY:
        assert early is not None
    if privacy is Privacy.LOCAL_ONLY or route is Route.EDGE:
        assert decision.tier is Tier.EDGE
    if route is Route.CLOUD or heavy:
        assert decision.tier is Tier.CLOUD
    if decision.tier is Tier.EDGE:
        assert evidence["holds_model"]


@given(st.floats(), st.floats())
def test_accepted_if_the_score_reaches_the_threshold(found: float, threshold: float) -> None:
    decision = by_score(found, threshold)
    accepted, escalated = TierDecision(Tier.EDGE, Reason.CONFIDENT), TierDecision(Tier.CLOUD, Reason.UNCERTAIN)
    assert decision == (accepted if found >= threshold else escalated)  # no comparison holds for NaN
