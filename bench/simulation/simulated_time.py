"""An event loop whose time is simulated: where it would wait for a timer, it goes there at once.

Everything that runs on it runs as it is, to the last callback before time moves: sleeps, timeouts and timers of asyncio
itself included. What is handed to a thread is run in the loop. Nothing on it may wait for a process or a socket: time
would run away.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from firstline_core.clock import Timer

T = TypeVar("T")

WALL_START_S = 1_800_000_000.0 - 1_800_000_000.0 % 86_400  # a midnight
_THREAD_S = 0.0005  # until a call in a thread is back


class _Leap(selectors.SelectSelector):
    """Waits for nothing, and notes how long it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.on_step: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("Everything waits for something that no timer brings; the simulation stands still.")
        self.on_step()
        self.now_s += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)

    def time(self) -> float:
        return self._leap.now_s

    def watch(self, on_step: Callable[[], None]) -> None:
        """Has a call made after every step, before time moves on; what it raises ends the simulation."""
        self._leap.on_step = on_step

    def run_in_executor(  # type: ignore[override]  # the base class types `args` by `func`
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """The call, a little later, in the loop's own thread: what it takes does not count."""
        called = self.create_future()

        def call() -> None:
            if called.done():
                return
            try:
                called.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 (raised where it is waited for)
                called.set_exception(error)

        self.call_later(_THREAD_S, call)
        return called


class LoopClock:
    """The running loop's time, as a `firstline_core.clock.Clock`; its wall clock starts at a midnight of UTC.

    Attributes:
        wall_ahead_s: how far its wall clock was set ahead, or back, since.
    """

    def __init__(self) -> None:
        self.wall_ahead_s = 0.0

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return WALL_START_S + self.wall_ahead_s + self.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_at(when_s, call)


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end, in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
