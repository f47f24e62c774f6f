"""Ends commands that wait when a signal asks for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def until_signalled(work: Coroutine[Any, Any, _Result]) -> _Result | signal.Signals:
    """Runs a coroutine until it ends, or until SIGINT, SIGTERM or SIGHUP cancels it.

    Returns:
        Its result, or the signal.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not received:  # a second one would interrupt the stopping
            task.cancel()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # to the tiers SIGHUP means reload
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        return (received or [signal.SIGINT])[0]
