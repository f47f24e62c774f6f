"""The simulated link delays, loses, stalls and falls silent as configured, in simulated time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from bench.simulation.simulated_time import LoopClock, simulate
from chaos.simulation.network import SimulatedLink, Weather
from firstline_core.errors import RemoteTimeoutError
from firstline_core.types import InferRequest, InferResponse, Tensor

T = TypeVar("T")

FAIR = Weather("fair", rtt_ms=50, mbit_s=1, jitter_ms=0)
SIZE = 12_500 - 700  # with its head, 0.1 s at 1 Mbit/s
BACK_S = 1200 * 8 / 1e6


class Instant:
    async def answer(self, request: InferRequest) -> InferResponse:
        return InferResponse(request.model, "1", (), id=request.id)


def request(size_bytes: int = SIZE) -> InferRequest:
    return InferRequest("m", (Tensor("x", np.zeros((1, size_bytes), np.uint8)),), "id")


def over(weather: Weather, use: Callable[[SimulatedLink, LoopClock], Awaitable[T]]) -> T:
    async def main() -> T:
        clock = LoopClock()
        return await use(SimulatedLink(weather, Instant(), clock, random.Random(1)), clock)

    return simulate(main())


async def seconds_of_a_call(link: SimulatedLink, clock: LoopClock) -> float:
    began_s = clock.monotonic_s()
    await link.infer(request(), 30.0)
    return clock.monotonic_s() - began_s


def test_a_call_takes_the_round_trip_and_the_bytes() -> None:
    assert over(FAIR, seconds_of_a_call) == pytest.approx(0.05 + 0.1 + BACK_S)


def test_transfers_queue_for_the_line() -> None:
    async def both(link: SimulatedLink, clock: LoopClock) -> list[float]:
        return list(await asyncio.gather(*(seconds_of_a_call(link, clock) for _ in range(2))))

    first_s, second_s = over(FAIR, both)
    assert second_s - first_s == pytest.approx(0.1)


def test_lost_packets_cost_time_and_bytes() -> None:
    async def many(link: SimulatedLink, clock: LoopClock) -> tuple[float, int]:
        took_s = [await seconds_of_a_call(link, clock) for _ in range(50)]
        return sum(took_s) / 50, link.sent_bytes

    fair_s, fair_bytes = over(FAIR, many)
    lossy_s, lossy_bytes = over(replace(FAIR, loss=0.05), many)
    assert lossy_s > fair_s + 0.05
    assert lossy_bytes > fair_bytes


def test_a_stall_holds_up_what_is_under_way() -> None:
    assert over(replace(FAIR, stalls=[(0.05, 2.0)]), seconds_of_a_call) == pytest.approx(
        2.0 + 0.05 / 2 + 0.025 + BACK_S
    )


def test_a_dead_link_says_nothing_until_the_time_is_over() -> None:
    async def call(link: SimulatedLink, clock: LoopClock) -> float:
        with pytest.raises(RemoteTimeoutError):
            await link.infer(request(), 0.7)
        with pytest.raises(RemoteTimeoutError):
            await link.probe(0.3)
        await clock.sleep(9.5)
        await link.probe(0.3)
        assert (link.requests, link.probes) == (1, 2)
        return clock.monotonic_s()

    off = replace(FAIR, off=[(0.0, 10.0)])
    assert over(off, call) == pytest.approx(0.7 + 0.3 + 9.5 + 0.05 + 2 * 700 * 8 / 1e6)


def test_a_day_passes_at_once_and_a_standstill_is_told() -> None:
    async def day() -> float:
        await asyncio.sleep(86_400)
        return LoopClock().monotonic_s()

    async def nothing() -> None:
        await asyncio.Event().wait()

    assert simulate(day()) == pytest.approx(86_400)
    with pytest.raises(RuntimeError, match="stands still"):
        simulate(nothing())
