"""A fleet whose gateway comes back lets it live: `make stampede` with a tenth of the devices."""

import pytest

from bench.simulation.fleet import Fleet, Seen, come_back
from bench.simulation.simulated_time import LoopClock, simulate
from bench.stampede import busiest_s

FLEET = Fleet(devices=100, capacity_s=40.0, steady_s=30.0, away_s=60.0)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return simulate(come_back(FLEET, LoopClock(), seed=1))


def test_nothing_that_was_promised_is_left(seen: Seen) -> None:
    assert seen.unkept == 0
    assert seen.drained_s - seen.back_s < 5 * FLEET.away_s


def test_no_moment_is_much_busier_than_the_gateway_can_bear(seen: Seen) -> None:
    assert busiest_s(seen.requests, seen.back_s, seen.drained_s, width_s=5.0) < 1.8 * FLEET.capacity_s
    assert seen.refused < 0.1 * len(seen.requests)


def test_probes_are_few(seen: Seen) -> None:
    assert len(seen.probes) < 3 * FLEET.devices
    assert busiest_s(seen.probes, seen.back_s, seen.drained_s) < FLEET.devices / 4


def test_the_same_seed_is_the_same_day(seen: Seen) -> None:
    small = Fleet(devices=5, capacity_s=2.0, steady_s=5.0, away_s=10.0)
    assert simulate(come_back(small, LoopClock(), seed=3)) == simulate(come_back(small, LoopClock(), seed=3))
