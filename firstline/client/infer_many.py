"""Sends many requests through one client: bounded in flight, with retries, in order or as they arrive."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    LinkDownError,
    RemoteTimeoutError,
)
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.types import InferResponse

DEFAULT_IN_FLIGHT = 16
DEFAULT_PATIENCE_S = 60.0

_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_RNG = random.Random()  # noqa: S311 (jitter)

T = TypeVar("T")
Progress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one of many requests.

    Attributes:
        position: index of the request, from 0.
        response: None if there is an error.
        error: why there is no response.
    """

    position: int
    response: InferResponse | None = None
    error: FirstlineError | None = None

    def result(self) -> InferResponse:
        """Returns the response.

        Raises:
            FirstlineError: the request failed.
        """
        if self.response is None:
            raise self.error or FirstlineError("There is neither a response nor an error.")
        return self.response


class Retries:
    """Decides when one request is sent again.

    Args:
        patience_s: how long to retry (seconds).
    """

    def __init__(self, patience_s: float) -> None:
        self._end_s = time.monotonic() + patience_s
        self._failures = 0

    def wait_s(self, error: FirstlineError) -> float | None:
        """Returns the time to wait, at least the server's `Retry-After`; None if the error is final."""
        passing = isinstance(error, CapacityError | LinkDownError | RemoteTimeoutError)
        if not passing or isinstance(error, DeadlineExceededError):
            return None
        drawn_s = full_jitter_s(_RNG, self._failures, base_s=_BACKOFF_S, max_s=_BACKOFF_MAX_S)
        wait_s = (error.retry_after_s or 0.0) + drawn_s
        self._failures += 1
        return wait_s if time.monotonic() + wait_s <= self._end_s else None


def in_threads(
    send: Callable[[T], InferResponse],
    requests: Iterable[T],
    *,
    in_flight: int,
    ordered: bool,
    patience_s: float,
    on_progress: Progress | None,
) -> Iterator[Outcome]:
    """Sends each request from a thread; consumes `requests` only as fast as requests are sent."""

    def one(position: int, asked: T) -> Outcome:
        retries = Retries(patience_s)
        while True:
            try:
                return Outcome(position, send(asked))
            except FirstlineError as error:
                wait_s = retries.wait_s(error)
                if wait_s is None:
                    return Outcome(position, error=error)
                time.sleep(wait_s)

    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; with less than 1 nothing would be sent.")
    threads = ThreadPoolExecutor(in_flight, thread_name_prefix="infer-many")
    under_way: deque[Future[Outcome]] = deque()
    source, done = enumerate(requests), 0
    try:
        while True:
            while len(under_way) < in_flight and (following := next(source, None)) is not None:
                under_way.append(threads.submit(one, *following))
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
        threads.shutdown(wait=False, cancel_futures=True)


async def in_tasks(
    send: Callable[[T], Awaitable[InferResponse]],
    requests: Iterable[T],
    *,
    in_flight: int,
    ordered: bool,
    patience_s: float,
    on_progress: Progress | None,
) -> AsyncIterator[Outcome]:
    """`in_threads` for asyncio."""

    async def one(position: int, asked: T) -> Outcome:
        retries = Retries(patience_s)
        while True:
            try:
                return Outcome(position, await send(asked))
            except FirstlineError as error:
                wait_s = retries.wait_s(error)
                if wait_s is None:
                    return Outcome(position, error=error)
                await asyncio.sleep(wait_s)

    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; with less than 1 nothing would be sent.")
    under_way: deque[asyncio.Task[Outcome]] = deque()
    source, done = enumerate(requests), 0
    try:
        while True:
            while len(under_way) < in_flight and (following := next(source, None)) is not None:
                under_way.append(asyncio.create_task(one(*following)))
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
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
