"""Sends many requests through one client: bounded in flight, with retries, in order or as they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar

from firstline.client.retries import Outcome, Steps
from firstline_core.clock import end_tasks

DEFAULT_IN_FLIGHT = 16

T = TypeVar("T")

Progress = Callable[[int], object]

Pause = Callable[[float], object]
"""Waits for a time (seconds)."""


def in_threads(
    run: Callable[[Steps[Outcome[T]], Pause], Outcome[T]],
    requests: Iterable[Steps[Outcome[T]]],
    *,
    in_flight: int,
    ordered: bool,
    on_progress: Progress | None,
) -> Iterator[Outcome[T]]:
    """Sends each request from a thread; consumes `requests` only as fast as requests are sent.

    Once the caller takes no more outcomes, no request is retried: the interpreter waits for the threads when it ends.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; with less than 1 nothing would be sent.")
    threads = ThreadPoolExecutor(in_flight, thread_name_prefix="infer-many")
    under_way: deque[Future[Outcome[T]]] = deque()
    source, done = iter(requests), 0
    is_over = Event()

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise CancelledError

    try:
        while True:
            while len(under_way) < in_flight and (following := next(source, None)) is not None:
                under_way.append(threads.submit(run, following, pause))
            if not under_way:
                return
            first = under_way[0] if ordered else next(iter(wait(under_way, return_when=FIRST_COMPLETED).done))
            outcome = first.result()
            under_way.remove(first)
            done += 1
            if on_progress is not None:
                on_progress(done)
            yield outcome
    finally:
        is_over.set()
        threads.shutdown(wait=False, cancel_futures=True)


async def in_tasks(
    run: Callable[[Steps[Outcome[T]]], Coroutine[Any, Any, Outcome[T]]],
    requests: Iterable[Steps[Outcome[T]]],
    *,
    in_flight: int,
    ordered: bool,
    on_progress: Progress | None,
) -> AsyncIterator[Outcome[T]]:
    """`in_threads` for asyncio."""
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; with less than 1 nothing would be sent.")
    under_way: deque[asyncio.Task[Outcome[T]]] = deque()
    source, done = iter(requests), 0
    try:
        while True:
            while len(under_way) < in_flight and (following := next(source, None)) is not None:
                under_way.append(asyncio.create_task(run(following)))
            if not under_way:
                return
            if ordered:
                first = under_way[0]
                await asyncio.wait([first])
            else:
                ended, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                first = next(iter(ended))
            under_way.remove(first)
            done += 1
            if on_progress is not None:
                on_progress(done)
            yield first.result()
    finally:
        await end_tasks(*under_way)
