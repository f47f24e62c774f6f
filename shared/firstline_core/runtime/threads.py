"""Calls in daemon threads: for calls that may never return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")

REFUSED = (OSError, RuntimeError, MemoryError)
"""What comes of a system that gives no process, no thread, no memory; it may give some later."""


async def in_daemon_thread(call: Callable[[], R]) -> R:
    """What the call returns or raises, from a thread that a process does not wait for at its end.

    For a call that may never return; `asyncio.to_thread` would hold the process up for as long.

    Raises:
        RuntimeError: the system gives no further thread.
    """
    return await asyncio.wrap_future(_begun(call))


def within(limit_s: float, call: Callable[[], R]) -> R:
    """The same for a program without an event loop.

    Raises:
        TimeoutError: it did not return in so many seconds; it goes on, and is not heard any more.
    """
    return _begun(call).result(limit_s)


def _begun(call: Callable[[], R]) -> Future[R]:
    outcome: Future[R] = Future()
    outcome.set_running_or_notify_cancel()  # so that a caller who leaves does not take the thread by surprise

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            outcome.set_exception(error)

    threading.Thread(target=work, name="daemon-call", daemon=True).start()
    return outcome
