"""A coroutine is run as far as it gets, and a task does the rest as if it had begun it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar

import pytest

from firstline_core.at_once import Left, at_once, in_task

SAID: ContextVar[str] = ContextVar("said", default="")


async def test_what_never_waits_ends_at_once_and_leaves_no_context() -> None:
    told = []

    async def work() -> None:
        SAID.set("inside")
        told.append(SAID.get())

    assert at_once(work()) is None
    assert told == ["inside"]
    assert not SAID.get()


async def test_what_is_left_is_what_a_task_takes_on_every_python() -> None:
    """Since 3.12 a generator is none, however it is marked."""
    left = at_once(asyncio.sleep(0))
    assert left is not None
    rest = left.rest()
    assert isinstance(rest, Coroutine)
    await rest


async def test_what_waits_goes_on_in_a_task_with_its_context_and_what_it_waited_for() -> None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    told: list[object] = []

    async def work() -> None:
        SAID.set("inside")
        told.append(await first)
        await asyncio.sleep(0)
        assert asyncio.current_task() is not None
        told.append(SAID.get())

    left = at_once(work())
    assert left is not None
    task = loop.create_task(_rest(left), context=left.context)
    await asyncio.sleep(0)
    assert not told
    first.set_result(3)
    await task
    assert told == [3, "inside"]


async def test_errors_and_cancellation_reach_it() -> None:
    loop = asyncio.get_running_loop()
    told: list[object] = []

    async def work(waits: asyncio.Future[int]) -> None:
        try:
            await waits
        except (ZeroDivisionError, asyncio.CancelledError) as error:
            told.append(type(error))
            raise

    failing: asyncio.Future[int] = loop.create_future()
    left = at_once(work(failing))
    assert left is not None
    failing.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await _rest(left)
    left = at_once(work(loop.create_future()))
    assert left is not None
    task = loop.create_task(_rest(left))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == [ZeroDivisionError, asyncio.CancelledError]


async def test_what_needs_a_task_gets_one() -> None:
    async def work() -> None:
        await in_task()
        async with asyncio.timeout(5):
            await asyncio.sleep(0)

    left = at_once(work())
    assert left is not None
    await asyncio.create_task(_rest(left))


async def _rest(left: Left) -> None:
    await left.rest()
