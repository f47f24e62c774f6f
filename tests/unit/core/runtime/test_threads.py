"""Waiting for what may never come."""

import asyncio
import subprocess
import sys
import threading

import pytest

from firstline_core.runtime.threads import in_daemon_thread, within

_ENDS = """
import asyncio, threading
from firstline_core.runtime.threads import in_daemon_thread

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    hanging = asyncio.create_task(in_daemon_thread(hang))
    await asyncio.to_thread(begun.wait)
    hanging.cancel()

asyncio.run(main())
"""


async def test_results_and_errors_of_a_call_are_passed_on() -> None:
    assert await in_daemon_thread(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 / 0)


async def test_a_caller_may_leave_before_the_call_returns() -> None:
    begun, go = threading.Event(), threading.Event()
    threads = []

    def call() -> None:
        threads.append(threading.current_thread())
        begun.set()
        go.wait()

    waiting = asyncio.create_task(in_daemon_thread(call))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await asyncio.to_thread(threads[0].join)  # an error in it would be a warning


def test_an_endless_call_does_not_delay_the_exit() -> None:
    subprocess.run([sys.executable, "-c", _ENDS], check=True, timeout=30)


def test_a_call_has_a_time_limit_without_a_loop() -> None:
    go = threading.Event()
    assert within(30.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(30.0, lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        within(0.05, go.wait)
    go.set()
