"""An event loop whose time is simulated: where it would wait for a timer, it goes there at once.

Everything that runs on it runs as it is, to the last callback before time moves: sleeps, timeouts and timers of asyncio
itself included. Nothing on it may wait for a thread, a process or a socket: time would run away.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from firstline_core.clock import Timer

T = TypeVar("T")

_WALL_START_S = 1_800_000_000.0 - 1_800_000_000.0 % 86_400  # a midnight


class _Leap(selectors.SelectSelector):
    """Waits for nothing, and notes how long it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("Everything waits for something that no timer brings; the simulation stands still.")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)

    def time(self) -> float:
        return self._leap.now_s


class LoopClock:
    """The running loop's time, as a `firstline_core.clock.Clock`; its wall clock starts at a midnight of UTC."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return _WALL_START_S + self.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_at(when_s, call)


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end, in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
