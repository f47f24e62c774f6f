"""Calls in threads: those that may never return, and those that take long and can be stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")

REFUSED = (OSError, RuntimeError, MemoryError)
"""Errors of a system that lacks resources for a process, a thread or memory; a retry may succeed."""


async def in_daemon_thread(call: Callable[[], R]) -> R:
    """Runs a call in a daemon thread, for which the process does not wait when it exits.

    For a call that may never return; `asyncio.to_thread` would delay the exit of the process.

    Raises:
        RuntimeError: the system cannot start another thread.
    """
    return await asyncio.wrap_future(_begun(call))


async def in_stoppable_thread(call: Callable[[threading.Event], R]) -> R:
    """Runs a call in a thread; when the caller is cancelled, the event that the call receives is set.

    The cancellation continues when the call has returned, so that it leaves no process behind.
    """
    stopped = threading.Event()
    thread = asyncio.create_task(asyncio.to_thread(call, stopped))
    try:
        return await asyncio.shield(thread)
    finally:
        stopped.set()
        await asyncio.gather(thread, return_exceptions=True)


def within(limit_s: float, call: Callable[[], R]) -> R:
    """Runs a call in a daemon thread, with a time limit; for a program without an event loop.

    Raises:
        TimeoutError: it did not return in time; it continues to run and its result is discarded.
    """
    return _begun(call).result(limit_s)


def _begun(call: Callable[[], R]) -> Future[R]:
    outcome: Future[R] = Future()
    outcome.set_running_or_notify_cancel()  # so that a cancelled caller does not make `set_result` fail

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            outcome.set_exception(error)

    threading.Thread(target=work, name="daemon-call", daemon=True).start()
    return outcome
