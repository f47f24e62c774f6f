"""The rate of deliveries: slow at first, then adapted to the delay that they cause."""

import random

import pytest

from firstline_core.clock import SimulatedClock
from firstline_edge.outbox.pacing import DeliveryRate, RateSettings

SETTINGS = RateSettings()


class Line:
    """Deliveries one after the other, to a gateway that answers within a given time."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.pace = DeliveryRate(self.clock, random.Random(1))
        self.sent_s: list[float] = []

    async def deliver(self, number: int, took_s: float = 0.05) -> None:
        for _ in range(number):
            await self.clock.advance(self.pace.wait_s)
            assert self.pace.wait_s == 0
            self.pace.sent()
            self.sent_s.append(self.clock.monotonic_s())
            await self.clock.advance(took_s)
            self.pace.answered(took_s)


async def test_a_few_go_at_once_and_the_next_ones_slowly() -> None:
    line = Line()
    for _ in range(SETTINGS.burst):
        assert line.pace.wait_s == 0
        line.pace.sent()
    assert line.pace.wait_s > 0.5 / SETTINGS.begin_per_s


async def test_the_rate_rises_within_seconds_with_a_fast_gateway() -> None:
    line = Line()
    await line.deliver(100)
    assert line.pace.per_s > 1000
    assert line.sent_s[-1] < 60


async def test_the_rate_falls_while_answers_queue() -> None:
    line = Line()
    await line.deliver(20)
    before = line.pace.per_s
    await line.deliver(20, took_s=0.5)
    assert line.pace.per_s < before / 100
    await line.deliver(5, took_s=10.0)
    assert line.pace.per_s >= SETTINGS.least_per_s


async def test_a_refusal_halves_the_rate_and_a_recovery_resets_it() -> None:
    line = Line()
    await line.deliver(30)
    before = line.pace.per_s
    line.pace.refused()
    assert line.pace.per_s == before / 2
    line.pace.begin()
    assert (line.pace.per_s, line.pace.wait_s) == (SETTINGS.begin_per_s, 0)


async def test_a_longer_round_trip_becomes_the_new_baseline() -> None:
    line = Line()
    await line.deliver(10, took_s=0.05)
    await line.deliver(30, took_s=0.3)
    slow = line.pace.per_s
    assert slow <= SETTINGS.begin_per_s
    await line.deliver(200, took_s=0.3)
    assert line.pace.per_s > slow


def test_the_gaps_of_two_devices_differ() -> None:
    clock = SimulatedClock()
    waits = set()
    for seed in range(10):
        pace = DeliveryRate(clock, random.Random(seed), RateSettings(burst=0))
        pace.sent()
        waits.add(pace.wait_s)
    assert len(waits) == 10


async def test_a_dozen_deliveries_after_an_overload_take_seconds() -> None:
    line = Line()
    await line.deliver(10)
    await line.deliver(30, took_s=2.0)
    assert line.pace.per_s == SETTINGS.least_per_s
    began_s = line.clock.monotonic_s()
    await line.deliver(12)
    assert line.clock.monotonic_s() - began_s < 30


async def test_a_timely_answer_shortens_the_gap_of_a_slowdown() -> None:
    line = Line()
    await line.deliver(10)
    await line.deliver(30, took_s=2.0)
    line.pace.sent()
    waited_s = line.pace.wait_s
    line.pace.answered(0.05)
    assert line.pace.per_s == SETTINGS.begin_per_s
    assert line.pace.wait_s == pytest.approx(waited_s * SETTINGS.least_per_s / SETTINGS.begin_per_s)
