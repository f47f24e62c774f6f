import random

from firstline_core.clock import SimulatedClock
from firstline_edge.cloud.breaker import BreakerState, CircuitBreaker
from firstline_edge.settings.settings import BreakerSection

SETTINGS = BreakerSection(failure_threshold=3, open_ms=1000, open_max_ms=8000)


async def opened(clock: SimulatedClock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock, random.Random(1), SETTINGS)
    for _ in range(3):
        breaker.failed()
    return breaker


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(SimulatedClock(), random.Random(1), SETTINGS)
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.allows_requests
    breaker.failed()
    breaker.failed()
    assert breaker.allows_requests
    breaker.failed()
    assert breaker.state is BreakerState.OPEN


async def test_half_open_lets_one_probe_through() -> None:
    clock = SimulatedClock()
    breaker = await opened(clock)
    assert not breaker.try_probe()
    await clock.advance(breaker.retry_in_s)
    assert breaker.try_probe()
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.try_probe()
    assert not breaker.allows_requests
    breaker.probe_succeeded()
    assert breaker.allows_requests


async def test_waits_double_up_to_the_cap_with_jitter() -> None:
    clock = SimulatedClock()
    breaker = await opened(clock)
    waits = []
    for _ in range(6):
        waits.append(breaker.retry_in_s)
        await clock.advance(breaker.retry_in_s)
        assert breaker.try_probe()
        breaker.probe_failed()
    for nominal_s, wait_s in zip([1, 2, 4, 8, 8, 8], waits, strict=True):
        assert 0 <= wait_s <= nominal_s
    assert len(set(waits)) == 6


async def test_a_misleading_probe_costs_one_request_less_and_less_often() -> None:
    clock = SimulatedClock()
    breaker = await opened(clock)
    waits = []
    for _ in range(4):
        waits.append(breaker.retry_in_s)
        await clock.advance(breaker.retry_in_s)
        assert breaker.try_probe()
        breaker.probe_succeeded()
        assert breaker.allows_requests
        breaker.failed()  # the one request that pays
        assert not breaker.allows_requests
    assert waits[3] > 2 * waits[0]


async def test_a_real_success_ends_the_trial() -> None:
    clock = SimulatedClock()
    breaker = await opened(clock)
    await clock.advance(breaker.retry_in_s)
    breaker.try_probe()
    breaker.probe_succeeded()
    breaker.succeeded()
    breaker.failed()
    assert breaker.allows_requests


async def test_late_failures_of_older_requests_change_nothing() -> None:
    clock = SimulatedClock()
    breaker = await opened(clock)
    before = breaker.retry_in_s
    breaker.failed()
    assert breaker.retry_in_s == before
    await clock.advance(before)
    breaker.try_probe()
    breaker.failed()
    assert breaker.state is BreakerState.HALF_OPEN
