"""Examples of the guards' advice and of the controller's steps down and up."""

import math
from itertools import pairwise

import pytest
from msgspec.structs import replace

from firstline_core.adaptation.controller import Controller, StepTiming
from firstline_core.adaptation.guards import Advice, Limits, heat_guard, memory_guard, slope_per_s
from firstline_core.adaptation.ladder import EnergyPrices, Rung, build_ladder, choose_rung
from firstline_core.hardware.readings import NOTHING_READ, Measured, Modelled, Snapshot

MB = 1 << 20
LIMITS = Limits(heat_c=80, heat_margin_c=4, horizon_s=20, memory_reserve_bytes=64 * MB)
RUNGS = (Rung("large", 40, merit=0.9), Rung("medium", 20, merit=0.8), Rung("small", 5, merit=0.6))


def hot(celsius: float, at_s: float = 0.0) -> Snapshot:
    return Snapshot(at_s=at_s, temperature_c={"soc": Measured(celsius, "/sys/temp")})


def drained(charge: float, at_s: float = 0.0) -> Snapshot:
    return Snapshot(at_s=at_s, battery_share=Measured(charge, "/sys/capacity"), powered=Measured(0, "/sys/online"))


def pressed(celsius: float, left_mb: float, at_s: float) -> Snapshot:
    left = Measured(left_mb * MB, "/proc/meminfo")
    return Snapshot(at_s=at_s, temperature_c={"soc": Measured(celsius, "")}, memory_available_bytes=left)


def free(available_bytes: float, at_s: float = 0.0) -> Snapshot:
    return Snapshot(at_s=at_s, memory_available_bytes=Measured(available_bytes, "/proc/meminfo"))


@pytest.mark.parametrize(
    ("celsius", "rise", "advice"),
    [
        (60, 0.0, Advice.ROOM),
        (73, 0.0, Advice.ROOM),
        (75, 0.1, Advice.STAY),
        (60, 0.9, Advice.STAY),
        (76, 0.0, Advice.STAY),
        (79.9, 0.0, Advice.STAY),
        (80, -1.0, Advice.SHED),
    ],
)
def test_heat_is_acted_on_before_the_limit(celsius: float, rise: float, advice: Advice) -> None:
    assert heat_guard(hot(celsius), rise, LIMITS).advice is advice


@pytest.mark.parametrize("cause", ["throttled", "under_voltage"])
def test_throttled_hardware_gets_the_cheapest_variant(cause: str) -> None:
    held_back = Snapshot(temperature_c={"soc": Measured(50, "")}, throttling={cause: Measured(1, "")})
    verdict = heat_guard(held_back, 0.0, LIMITS)
    assert verdict.advice is Advice.CHEAPEST
    assert cause in verdict.reason


@pytest.mark.parametrize(
    ("left_mb", "better_mb", "advice"),
    [
        (500, 100, Advice.ROOM),
        (200, 150, Advice.STAY),  # it fits, and would leave too little
        (60, 0, Advice.CHEAPEST),
        (20, 0, Advice.SHED),
    ],
)
def test_the_memory_reserve_is_respected(left_mb: int, better_mb: int, advice: Advice) -> None:
    assert memory_guard(free(left_mb * MB), better_mb * MB, LIMITS).advice is advice


@pytest.mark.parametrize(("share", "advice"), [(0.05, Advice.ROOM), (0.3, Advice.CHEAPEST), (0.7, Advice.SHED)])
def test_memory_pressure_counts_whatever_is_available(share: float, advice: Advice) -> None:
    stalled = Snapshot(memory_available_bytes=Measured(1e9, ""), memory_stalled_share=Measured(share, ""))
    assert memory_guard(stalled, 0, LIMITS).advice is advice


def test_a_modelled_reading_is_ignored() -> None:
    guessed = Snapshot(temperature_c={"soc": Modelled(99, "a guess")})
    assert heat_guard(guessed, 5.0, LIMITS).advice is Advice.ROOM


def test_without_readings_the_best_variant_stays() -> None:
    assert Controller(RUNGS, LIMITS).update(NOTHING_READ).rung == 0


def test_two_points_are_no_trend() -> None:
    assert slope_per_s([(0, 1), (1, 9)]) == 0
    assert slope_per_s([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope_per_s([(3, 76), (3.9, 76), (4.9, 77)]) == 0  # whole degrees, of a moment


def test_a_rising_trend_is_acted_on_before_the_limit() -> None:
    controller = Controller(RUNGS, LIMITS)
    positions = [controller.update(hot(60 + 0.5 * at, at)) for at in range(30)]
    first = next(at for at, position in enumerate(positions) if position.rung)
    assert 60 + 0.5 * first < LIMITS.heat_c - LIMITS.heat_margin_c
    assert positions[first].verdict.guard == "heat"
    assert not any(position.shedding for position in positions)


def test_a_reverted_step_up_is_retried_after_longer_pauses() -> None:
    """The best variant needs more memory than the device has; the pause doubles with each try."""
    timing = StepTiming(settle_s=10, dwell_s=20, regret_s=120)
    controller = Controller(RUNGS[:2], LIMITS, timing)
    left_mb, raised, at_s, rung = 200.0, [], 0.0, 0
    while at_s < 4000:
        left_mb += ((0 if rung == 0 else 400) - left_mb) / 20
        at_s += 1
        after = controller.update(free(left_mb * MB, at_s)).rung
        if after < rung:
            raised.append(at_s)
        rung = after
    gaps = [then - first for first, then in pairwise(raised)]
    assert len(gaps) >= 4
    assert gaps[3] > 2 * gaps[1] > 3 * gaps[0] / 2
    assert len(raised) < 4000 / 300


@pytest.mark.parametrize("period_s", [1.0, 5.02])  # a sampler reads each five seconds, and takes a moment for it
@pytest.mark.parametrize("cools_s", [20.0, 60.0, 300.0])
def test_splitting_requests_settles_heat_below_the_limit(cools_s: float, period_s: float) -> None:
    """The best variant leads to 90 C, the next one to 66: in the end between a third and two thirds get the next."""
    controller, celsius, at_s, last = Controller(RUNGS, LIMITS), 60.0, 0.0, []
    while at_s < 40 * cools_s:
        position = controller.position
        depth = position.rung + position.next_share
        celsius += (90 - 24 * min(depth, 1.0) - 10 * max(0.0, depth - 1) - celsius) * period_s / cools_s
        at_s += period_s
        controller.update(hot(float(int(celsius)), at_s))
        assert celsius < LIMITS.heat_c and not controller.position.shedding
        if at_s > 30 * cools_s:
            last.append((celsius, depth))
    shared = [depth for _, depth in last]
    assert 0.33 < sum(shared) / len(shared) < 0.67
    bound_c = LIMITS.heat_c - LIMITS.heat_margin_c
    assert all(bound_c - 4 < each < bound_c + 3 for each, _ in last)


def test_within_a_third_of_the_margin_only_the_cheapest_runs() -> None:
    controller = Controller(RUNGS, LIMITS)
    assert controller.update(hot(78.5)).rung == 0, "it is over the margin since this moment"
    assert controller.update(hot(78.7, 1.0)).rung == len(RUNGS) - 1
    cooler = [controller.update(hot(70, 1.0 + at)) for at in range(1, 4)]
    assert cooler[-1][:2] == (0, False), "nobody waits for long who has cooled"


def test_the_trend_is_followed_at_any_reading_period() -> None:
    for period_s in (1.0, 5.02, 30.0):
        controller = Controller(RUNGS, LIMITS)
        for at in range(3):
            position = controller.update(hot(70 + 0.4 * period_s * at, period_s * at))
        assert position.rung or position.next_share, period_s


def test_a_silent_sensor_allows_no_better_variant() -> None:
    controller = Controller(RUNGS, LIMITS)
    assert controller.update(hot(79.5)).rung == 2
    silent = [controller.update(Snapshot(at_s=5.0 * at)) for at in range(1, 60)]
    assert {(position.rung, position.shedding) for position in silent} == {(2, False)}
    assert controller.update(hot(60, 300)).rung == 0

    short = Controller(RUNGS, LIMITS)
    assert short.update(free(60 * MB)).rung == 2
    assert {short.update(Snapshot(at_s=5.0 * at)).rung for at in range(1, 60)} == {2}


def test_a_silent_sensor_ends_shedding() -> None:
    controller = Controller(RUNGS, LIMITS)
    hottest = [controller.update(hot(81, 5.0 * at)) for at in range(5)]
    assert hottest[-1].shedding
    silent = [controller.update(Snapshot(at_s=25 + 5.0 * at)) for at in range(12)]
    assert silent[-1][:2] == (2, False), "the cheapest answers, and no better one"


def test_a_step_up_names_the_guard_of_the_step_down() -> None:
    controller = Controller(RUNGS, LIMITS)
    assert controller.update(hot(79.5)).rung == 2
    assert controller.update(hot(60, 5)).verdict.guard == "heat"
    controller = Controller(RUNGS, LIMITS)
    assert controller.update(drained(0.2)).rung
    charged = [controller.update(drained(0.9, 5.0 * at)) for at in range(1, 30)]
    assert charged[-1].rung == 0
    assert {position.verdict.guard for position in charged if position.verdict is not None} == {"battery"}


def test_warmth_does_not_block_another_guards_step_up() -> None:
    """At 75 C it is below where heat settles: nothing keeps it from its best variant but the timing."""
    controller = Controller(RUNGS, LIMITS)
    assert controller.update(pressed(75, 60, 0)).rung == 2
    assert [controller.update(pressed(75, 4000, 5.0 * at)) for at in range(1, 30)][-1].rung == 0


def test_memory_unloads_variants_whatever_heat_decides() -> None:
    controller = Controller(RUNGS, LIMITS)
    assert not controller.update(pressed(79.5, 500, 0)).unload
    assert controller.update(pressed(79.5, 50, 5)).unload
    assert [controller.update(pressed(81, 2, 10.0 + 5 * at)).unload for at in range(5)] == [True] * 5


def test_heat_shares_only_if_no_guard_requires_less() -> None:
    short = Controller(RUNGS, LIMITS).update(pressed(77, 60, 0))
    assert short.rung == len(RUNGS) - 1 and short.next_share == 0
    assert short.verdict.guard == "memory"
    shared = Controller(RUNGS, LIMITS).update(pressed(77, 500, 0))
    assert shared.rung == 0 and 0 < shared.next_share < 1
    assert shared.verdict.guard == "heat"


def test_shedding_ends_without_room_if_no_guard_forbids() -> None:
    controller = Controller(RUNGS[-1:], LIMITS)
    assert controller.update(hot(81, 0)).shedding
    assert all(controller.update(hot(74, at)).shedding for at in range(1, 20))  # between the bound and room
    assert not controller.update(hot(74, 21)).shedding


@pytest.mark.parametrize("left_mb", [50, 500])
def test_shedding_ends_while_the_cheapest_is_asked_for(left_mb: float) -> None:
    """Memory below the reserve, or a supply that stays weak, allows the cheapest variant for as long as it lasts."""
    controller = Controller(RUNGS, LIMITS)
    assert [controller.update(pressed(81, 20, 5.0 * at)) for at in range(5)][-1].shedding
    weak = {"under_voltage": Measured(1, "")}
    later = [replace(pressed(70, left_mb, 25 + 5.0 * at), throttling=weak) for at in range(12)]
    assert [controller.update(snapshot)[:2] for snapshot in later][-1] == (2, False)


def test_the_ladder_has_only_useful_rungs() -> None:
    slower = Rung("slower", 50, energy_mj=10, merit=0.7)
    thirstier = Rung("thirstier", 10, energy_mj=90, merit=0.7)
    best = Rung("best", 40, energy_mj=80, merit=0.9)
    assert build_ladder([slower, best, thirstier, *RUNGS[1:]]) == (best, *RUNGS[1:])
    with pytest.raises(ValueError, match="needs at least one rung"):
        build_ladder([])


@pytest.mark.parametrize(
    ("busy", "left_ms", "link_ms", "rung"),
    [
        (0.0, 200, 50, 0),
        (0.5, 200, 50, 1),  # there is time to ask the full model: it gives way to the others
        (1.0, 200, 50, 2),
        (0.0, 100, 50, 1),  # the best would be done, and too late to ask the full model
        (1.0, 54, 50, 1),  # there is no time for that anyhow: only a variant that is sure is in time
        (1.0, 200, math.inf, 0),
        (0.0, 30, math.inf, 1),
        (0.0, 3, 0, 2),
        # A patient request gives way on a slow link: it could wait for several runs, and others wait for it.
        (1.0, 300, 1000, 1),
        (0.9, 300, 1000, 0),
        (1.0, 200, 1000, 0),
        (1.0, 300, math.inf, 0),  # no other caller is asked, so nothing is to be had by a lesser answer
    ],
)
def test_the_best_variant_in_time_is_chosen(busy: float, left_ms: float, link_ms: float, rung: int) -> None:
    assert choose_rung([60, 30, 5], busy, [0, 0, 0], left_ms, link_ms) == rung


# Answers take 15, 8 and 6 mJ, where escalation is cheap.
THRIFTY = EnergyPrices((15.0, 6.0, 2.0), (0.0, 0.2, 0.4), 10.0)


@pytest.mark.parametrize(
    ("left_ms", "link_ms", "rung"),
    [
        (300, 10, 2),
        # Of the 270 and 295 ms left, a quarter and a third are to spare: the price of asking rises by these factors.
        (300, 200, 1),
        (300, 235, 0),  # a seventh and a fifth
        (300, 262, 2),  # the best has no time for it, and the next one hardly any
        (54, 50, 1),  # as without prices: none has, so only a variant that is sure is in time
        (300, math.inf, 0),
    ],
)
def test_the_variant_with_the_least_energy_is_chosen(left_ms: float, link_ms: float, rung: int) -> None:
    for busy in (0.0, 0.9):
        assert choose_rung([60, 30, 5], busy, [0, 0, 0], left_ms, link_ms, prices=THRIFTY) == rung


def test_a_rung_that_need_not_wait_meets_the_deadline() -> None:
    assert choose_rung([60, 30, 0.5], 1.0, [100, 100, 0], 80) == 2
    assert choose_rung([60, 30, 40], 1.0, [100, 100, 0], 20) == 2  # the first that is done


def test_expected_energy_includes_escalations() -> None:
    dear = EnergyPrices((18.0, 6.0, 2.0), (0.0, 0.2, 0.4), 100.0)
    assert choose_rung([60, 30, 5], 0.0, [0, 0, 0], 500, 10, prices=dear) == 0
    assert dear.expected_mj(1, 0.0, 100.0) == 26.0 and dear.expected_mj(1, 50.0, 100.0) == 46.0
    assert dear.expected_mj(1, 100.0, 100.0) == dear.expected_mj(1, 0.0, 0.0) == math.inf
    assert dear.expected_mj(0, 100.0, 100.0) == 18.0
