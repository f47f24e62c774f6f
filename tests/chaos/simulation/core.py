"""A device with one core, on simulated time."""

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError
from firstline_edge.models.workers import Workers

A = TypeVar("A")
R = TypeVar("R")


class OneCore(Workers):
    """Runs one call after the other, each for as long as it is stated to take."""

    def __init__(self, run_ms: float, clock: Clock) -> None:
        super().__init__(1, 0, clock)
        self._run_ms = run_ms
        self._core = asyncio.Lock()
        self._here = 0

    @property
    def wait_s(self) -> float:
        return self._here * self._run_ms / 1000

    async def run(
        self, call: Callable[[A], R], argument: A, deadline_s: float = math.inf, expected_s: float = 0.0
    ) -> R:
        self._here += 1
        try:
            async with self._core:
                if self._clock.monotonic_s() >= deadline_s:
                    raise DeadlineExceededError(
                        "The request's deadline passed before this device's model was free for it."
                    )
                await self._clock.sleep(self._run_ms / 1000)
        finally:
            self._here -= 1
        return call(argument)
