from __future__ import annotations

import numpy as np

from firstline_core.routing.fallback import RejectedRange, rejected_ranges


def _of(p_values: list[float], starts: list[tuple[int, float]], delta: float = 0.1) -> list[RejectedRange]:
    return rejected_ranges(len(p_values), starts, delta, lambda first, last: np.array(p_values[first:last]))


def test_one_start_is_fixed_sequence_testing() -> None:
    assert _of([0.1, 0.05, 0.11, 0.0], [(0, 1.0)]) == [RejectedRange(0, 1, 0.1)]
    assert _of([0.2, 0.0], [(0, 1.0)]) == []


def test_an_unbroken_walk_collects_what_later_starts_bring() -> None:
    assert _of([0.04, 0.04, 0.09, 0.11], [(0, 0.5), (2, 0.5)]) == [RejectedRange(0, 1, 0.05), RejectedRange(2, 2, 0.1)]


def test_a_broken_walk_goes_on_at_the_next_start_with_that_share_alone() -> None:
    starts = [(0, 0.5), (2, 0.5)]
    assert _of([0.06, 0.0, 0.05, 0.051], starts) == [RejectedRange(2, 2, 0.05)]
    assert _of([0.01, 0.06, 0.06, 0.0], starts) == [RejectedRange(0, 0, 0.05)]


def test_no_start_tests_nothing() -> None:
    assert _of([0.0], []) == []
