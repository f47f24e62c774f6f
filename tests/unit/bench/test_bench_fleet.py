"""The judgement on drawn fleets: a few of the rollouts that `make -C bench fleet` has by the thousand."""

import pytest

from bench.fleet.alarms import alarmed
from bench.fleet.judged import judged
from bench.fleet.population import Effect
from bench.fleet.run import DETECTORS, UNCHANGED, WORSE, detector, figures, simulated


def test_unchanged_models_pass_and_worse_ones_fail_at_once() -> None:
    assert not any(judged(seed, treated=30, control=60, stages=1).aborted for seed in range(2))
    found = [judged(seed, treated=100, control=100, stages=1, effect=WORSE) for seed in range(2)]
    assert [(each.aborted, each.stage, each.rule) for each in found] == [(True, 0, "disagreement")] * 2


@pytest.mark.parametrize("seed", range(4))
def test_bad_bundle_is_not_promoted_after_the_alarm(seed: int) -> None:
    ended = alarmed(seed)
    assert (ended.alarmed, ended.promoted, ended.state, ended.left) == (True, 0, "rolled_back", 0)


def test_a_contract_that_holds_at_its_limit_does_not_abort_most_rollouts() -> None:
    assert not any(judged(seed, treated=20, control=20, stages=1, contract=True).aborted for seed in range(2))


def test_drift_of_scores_under_equal_answers_aborts_at_once() -> None:
    found = judged(1, treated=50, control=50, stages=1, effect=Effect(drift=1.0))
    assert (found.aborted, found.stage, found.rule) == (True, 0, "drift")


@pytest.mark.parametrize(
    ("seed", "name"),  # fleets with an odd seed have no full model
    [(at % 2, name) for at, name in enumerate(sorted(DETECTORS.keys() - {UNCHANGED}))],
)
def test_a_bad_detector_is_stopped_without_an_alarm(name: str, seed: int) -> None:
    ended = detector(name, seed)
    assert (ended.promoted, ended.decision) == (False, "abort")
    assert ended.stage == 0 or seed == 1  # without a full model it may reach half of the devices
    assert seed == 0 or ended.rule == ("surplus" if name.startswith(("invents", "wrong")) else "objects")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_detector_that_changes_nothing_reaches_every_device(seed: int) -> None:
    ended = detector(UNCHANGED, seed)
    assert (ended.promoted, ended.reached) == (True, 200)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"verified": {"old": 19, "neither": 1}}, False),
        ({"stage": 2}, False),
        ({"state": "completed"}, False),
    ],
)
def test_a_bad_model_is_stopped_in_stage_1_or_that_is_said(change: dict[str, object], holds: bool) -> None:
    ended = {"devices": 20, "state": "rolled_back", "stage": 1, "rule": "latency", "verified": {"old": 20}}
    (one,) = figures({"devices": {"slow": ended | change}})
    assert one.holds is holds


@pytest.mark.parametrize("name", ["corrupt", "crashing within a minute"])
def test_agents_return_to_the_old_model_which_verifies(name: str) -> None:
    """The updater, its trust and its slots are those of the device."""
    ended = simulated(name, 30)
    assert (ended["state"], ended["stage"], ended["rule"]) == ("rolled_back", 1, "installations")
    assert ended["verified"] == {"old": 30}


def test_a_figure_that_misses_its_aim_says_so() -> None:
    (one,) = figures({"five_points_worse": {"rollouts": 1000, "aborted_in_stage_1": 980}})
    assert one.holds is False


def test_of_few_rollouts_nothing_is_claimed() -> None:
    (one,) = figures({"same_model": {"rollouts": 999, "aborted": 0}})
    assert one.holds is None and one.aim is None
