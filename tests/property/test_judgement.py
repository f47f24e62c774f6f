"""The judgement of a stage keeps its error probability for any distribution of figures."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_gateway.rollouts.judgement.statistics import LOOKS_PER_STAGE, ClassGroups, Groups, level, p_values

FIGURES = st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.0, 1e6]), min_size=5, max_size=7)


def groups_of(values: list[float], before: list[float], treated: tuple[int, ...]) -> Groups:
    mask = np.zeros(len(values), bool)
    mask[list(treated)] = True
    weights = np.linspace(0.2, 1, len(values))
    return Groups(np.asarray(values), weights, np.asarray(before), mask)


@settings(max_examples=20, deadline=None)
@given(FIGURES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_p_values_of_an_unchanged_model_are_uniform(values: list[float], treated: int, random: object) -> None:
    before = [random.choice([np.nan, 0.0, 1.0]) for _ in values]
    divisions = list(combinations(range(len(values)), treated))
    rng = np.random.default_rng(1)
    found = np.array(
        [p_values([ClassGroups([groups_of(values, before, chosen)], 0.0)], 0.001, rng)[0] for chosen in divisions]
    )
    for at in (0.1, 0.3, 0.5):
        # A tenth, and one division more: p-values are estimated by drawing, and are multiples of 1 / divisions.
        assert np.mean(found <= at) <= at * 1.1 + 1 / len(divisions)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([None, 0.0, 0.01, 1.0, 7.0, 1e6]), min_size=6, max_size=6), min_size=2, max_size=5
    ),
    st.integers(1, 3),
)
def test_the_p_value_of_the_worst_class_is_uniform(classes: list[list[float | None]], treated: int) -> None:
    """However many classes there are, how they depend on each other, and which devices report them."""
    divisions = list(combinations(range(6), treated))
    rng, found = np.random.default_rng(1), []
    for chosen in divisions:
        mask = np.isin(np.arange(6), chosen)
        groups = [
            Groups(
                np.array([value or 0.0 for value in values]),
                np.array([0.0 if value is None else 0.3 + 0.1 * place for place, value in enumerate(values)]),
                np.full(6, np.nan),
                mask,
                str(number),
            )
            for number, values in enumerate(classes)
        ]
        found.append(p_values([ClassGroups(groups, 0.0)], 0.001, rng)[0])
    for at in (0.1, 0.3, 0.5):
        assert np.mean(np.array(found) <= at) <= at * 1.1 + 1 / len(divisions)


def test_figures_are_tested_together_as_if_each_were_alone() -> None:
    rng = np.random.default_rng(8)
    treated = np.arange(40) < 20

    def groups(name: str, by: float) -> Groups:
        return Groups(rng.normal(size=40) + by * treated, np.ones(40), np.full(40, np.nan), treated, name)

    worse = [groups("a", 0.0), groups("b", 3.0), groups("c", 0.0)]
    plain, same, empty = [groups("", 2.0)], [groups("a", 0.0), groups("b", 0.0)], [groups("", 1.0)]
    empty = [Groups(empty[0].values, np.where(treated, 1.0, 0.0), empty[0].before, treated)]
    figures = [ClassGroups(classes, 0.0) for classes in (empty, same, worse, plain)]
    together = p_values(figures, 1e-3, np.random.default_rng(1))
    assert together[0] == 1 and together[1] > 0.02 and max(together[2:]) < 1e-3


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
        found += p_values([ClassGroups([groups_of(list(worse), [np.nan] * 20, treated)], tolerance)], 0.01, rng)
    assert 0.02 <= np.mean(np.array(found) <= 0.05) <= 0.08
