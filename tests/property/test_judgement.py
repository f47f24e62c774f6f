"""The judgement of a stage keeps its error probability for any distribution of figures."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE, Groups, level, p_values

FIGURES = st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.0, 1e6]), min_size=5, max_size=7)


def groups_of(values: list[float], before: list[float], treated: tuple[int, ...]) -> Groups:
    mask = np.zeros(len(values), bool)
    mask[list(treated)] = True
    weights = np.linspace(0.2, 1, len(values))
    return Groups(np.asarray(values), weights, np.asarray(before), mask)


@settings(max_examples=20, deadline=None)
@given(FIGURES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_p_values_of_an_unchanged_model_are_uniform(values: list[float], treated: int, random: object) -> None:
    before = [random.choice([np.nan, 0.0, 1.0]) for _ in values]  # type: ignore[attr-defined]
    divisions = list(combinations(range(len(values)), treated))
    rng = np.random.default_rng(1)
    found = np.array([p_values([(groups_of(values, before, chosen), 0.0)], 0.001, rng)[0] for chosen in divisions])
    for at in (0.1, 0.3, 0.5):
        # A tenth, and one division more: p-values are estimated by drawing, and are multiples of 1 / divisions.
        assert np.mean(found <= at) <= at * 1.1 + 1 / len(divisions)


@given(st.floats(0.001, 0.3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 300))
def test_evaluations_spend_at_most_the_error_probability(alpha: float, stages: int, figures: int, looks: int) -> None:
    spent = stages * figures * sum(level(alpha, stages=stages, figures=figures, look=look + 1) for look in range(looks))
    assert spent <= alpha * (1 + 1e-9)
    if looks >= LOOKS_PER_STAGE:
        assert spent >= alpha / 2 * (1 - 1e-9)


@pytest.mark.parametrize("tolerance", [0.0, 0.3])
def test_a_difference_of_just_the_tolerance_is_accepted(tolerance: float) -> None:
    rng, values = np.random.default_rng(5), np.random.default_rng(6).normal(size=(400, 20))
    found = []
    for row in values:
        treated = tuple(rng.permutation(20)[:8])
        worse = row.copy()
        worse[list(treated)] += tolerance
        found += p_values([(groups_of(list(worse), [np.nan] * 20, treated), tolerance)], 0.01, rng)
    assert 0.02 <= np.mean(np.array(found) <= 0.05) <= 0.08
