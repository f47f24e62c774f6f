"""What is certified, over any rows: who asks for less keeps no less, whatever the contract, and no test is skipped."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_core.routing.binomial import cdf
from firstline_core.routing.bounds import clopper_pearson
from firstline_core.routing.certification import CertificationResult, Start, certify, split, start_shares, starts_at
from firstline_core.routing.contracts import certify_groups, certify_stream, certify_weighted

Found = CertificationResult
SCORE = st.integers(0, 8).map(lambda q: q / 8) | st.floats(-5, 5)
ROWS = st.lists(st.tuples(SCORE, st.booleans()), min_size=1, max_size=120)
SHARES = st.floats(0.01, 0.6)
MORE = st.floats(0, 0.3)


def _certify(rows: Any, epsilon: float, delta: float, **options: Any) -> CertificationResult:
    return certify([score for score, _ in rows], [float(wrong) for _, wrong in rows], epsilon, delta, **options)


def _selected(scores: Any, losses: Any, epsilon: float, delta: float, select: float) -> CertificationResult:
    """Certifies on the rows that a part of them, which places the starts, leaves."""
    part, rest = split(len(scores), select, 0)
    starts = starts_at(scores[part], start_shares(len(rest))) if select else None
    return certify(scores[rest], losses[rest], epsilon, delta, starts=starts)


def _no_less(loose: Found, strict: Found) -> None:
    """Whatever the strict one keeps is kept by the loose one too."""
    if strict.threshold is not None:
        assert loose.threshold <= strict.threshold
    assert loose.kept >= strict.kept


@settings(max_examples=40)
@given(ROWS, SHARES, SHARES, MORE, st.sampled_from([0.0, 0.3]))
def test_weaker_promise_accepts_no_fewer_rows(
    rows: Any, epsilon: float, delta: float, more: float, select: float
) -> None:
    scores, losses = np.array(rows, np.float64).T
    strict = _selected(scores, losses, epsilon, delta, select)
    _no_less(_selected(scores, losses, epsilon + more, delta, select), strict)
    _no_less(_selected(scores, losses, epsilon, delta + more, select), strict)


@st.composite
def populations(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """Scores that may tie, losses that are rarer at high ones, weights as a device's draws give them, and groups."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(20, 400))
    scores = np.round(random.random(n), draw(st.integers(1, 3)))
    losses = random.random(n) < draw(st.floats(0, 0.4)) * (1 - scores)
    weights = 1 / random.choice(draw(st.lists(st.floats(0.01, 1), min_size=1, max_size=4)), n)
    return scores, losses, weights, random.integers(0, 2, n).tolist()


def _stream(rows: Any, epsilon: float, delta: float, select: float) -> dict[str, Found]:
    scores, losses, weights, _ = rows
    won = ~losses & (weights > np.median(weights))  # the edge alone is right
    net, (part, rest) = losses * 1 - won, split(len(scores), select, 0)
    return {"all": certify_stream(scores[rest], net[rest], epsilon, delta, grid=scores[part] if select else None)}


def _weighted(rows: Any, epsilon: float, delta: float, select: float) -> dict[str, Found]:
    scores, losses, weights, _ = rows
    return {"all": certify_weighted(scores, losses, weights, epsilon, delta, select_fraction=select)}


def _graded(rows: Any, epsilon: float, delta: float, select: float) -> dict[str, Found]:
    scores, losses, weights, _ = rows
    return {"all": _selected(scores, losses / weights, epsilon, delta, select)}


def _groups(rows: Any, epsilon: float, delta: float, select: float) -> dict[str, Found]:
    scores, losses, _, groups = rows
    part, rest = split(len(scores), select, 0)
    starts = {group: starts_at(scores[[row for row in part if groups[row] == group]]) for group in set(groups)}
    return {**certify_groups(scores[rest], losses[rest], [groups[row] for row in rest], epsilon, delta, starts=starts)}


@pytest.mark.parametrize("contract", [_stream, _weighted, _graded, _groups])
@settings(max_examples=40, deadline=None)
@given(populations(), st.tuples(SHARES, SHARES), MORE, st.sampled_from([0.0, 0.3]))
def test_weaker_promise_accepts_no_fewer_rows_under_every_contract(
    contract: Callable[..., dict[Any, Found]], rows: Any, promise: tuple[float, float], more: float, select: float
) -> None:
    epsilon, delta = promise
    strict = contract(rows, epsilon, delta, select)
    for loose in (contract(rows, epsilon + more, delta, select), contract(rows, epsilon, delta + more, select)):
        assert loose.keys() == strict.keys()
        for name, found in strict.items():
            _no_less(loose[name], found)


@settings(max_examples=40)
@given(ROWS, SHARES, SHARES)
def test_certified_bound_is_below_epsilon(rows: Any, epsilon: float, delta: float) -> None:
    found = _certify(rows, epsilon, delta)
    if found.threshold is None or found.risk_upper is None:
        assert (found.certified, found.kept, found.risk_upper) == (False, 0, None)
        assert found.n_needed >= 1
        return
    kept = [wrong for score, wrong in rows if score >= found.threshold]
    assert found.kept == len(kept) / found.n
    assert clopper_pearson(sum(kept), len(kept), delta) <= found.risk_upper + 1e-9 <= epsilon + 2e-9
    assert cdf(sum(kept), len(kept), epsilon) <= delta
    assert found.n_needed == 0


@settings(max_examples=40)
@given(ROWS, SHARES, SHARES)
def test_search_stops_at_a_failed_test_or_the_end(rows: Any, epsilon: float, delta: float) -> None:
    """Reference: every score is tested one by one, from one start, and rows of equal score come together."""
    start = Start(sorted(score for score, _ in rows)[len(rows) // 2], 1.0)
    certified = None
    for threshold in sorted({score for score, _ in rows if score <= start.threshold}, reverse=True):
        kept = [wrong for score, wrong in rows if score >= threshold]
        if cdf(sum(kept), len(kept), epsilon) > delta:
            break
        certified = threshold
    found = _certify(rows, epsilon, delta, starts=[start])
    assert (found.threshold is None) == (certified is None)
    if certified is not None:
        assert [score >= found.threshold for score, _ in rows] == [score >= certified for score, _ in rows]


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_row_order_does_not_matter(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, losses = random.integers(0, 20, 300) / 20, random.random(300) < 0.03
    order = random.permutation(300)
    assert certify(scores, losses, 0.06, 0.1) == certify(scores[order], losses[order], 0.06, 0.1)
