"""The judgement on drawn fleets: a few of the rollouts that `make bench-fleet` has by the thousand."""

from __future__ import annotations

from fleet.judged import judged
from fleet.run import WORSE, figures


def test_a_model_that_changes_nothing_is_not_aborted_and_one_that_is_worse_is_in_the_first_stage() -> None:
    assert not any(judged(seed, treated=30, control=60, stages=1).aborted for seed in range(2))
    found = [judged(seed, treated=100, control=100, stages=1, effect=WORSE) for seed in range(2)]
    assert [(each.aborted, each.stage, each.rule) for each in found] == [(True, 0, "disagreement")] * 2


def test_a_figure_that_misses_its_aim_says_so() -> None:
    (one,) = figures({"five_points_worse": {"rollouts": 1000, "aborted_in_stage_1": 980}})
    assert one.holds is False


def test_of_few_rollouts_nothing_is_claimed() -> None:
    (one,) = figures({"same_model": {"rollouts": 999, "aborted": 0}})
    assert one.holds is None and one.aim is None
