"""Decides when and in which thread images and recordings are decoded, within a memory budget per caller and in total.

`images.py` and `audio.py` decode. Files are decoded where their model runs if that takes little time, also compared
with the model, see `cost.py`. Large ones are decoded first, in threads of low priority, so that they take neither the
event loop nor the places of other requests. A caller whose images fill its part of the budget or of the threads waits,
and does not delay others.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, PayloadTooLargeError, QueueFullError
from firstline_core.processing.cost import DecodingCost, MeasuredInputs, PreparedRows, is_light
from firstline_core.runtime.priority import use_low_priority_in_thread
from firstline_core.types import Arrays, row_count

_INLINE_BYTES, _INLINE_ROW_BYTES = 16 * 1024, 1 << 20  # their headers are read within a few milliseconds
_PATIENCE_S = 10.0
_PASSES = 16  # other requests that may overtake one whose memory is not free
_REMEMBERED = 1024  # callers whose turns are known

_T = TypeVar("_T")


class Preparing(Protocol):
    """The part of a loaded model that decoding needs."""

    @property
    def row_s(self) -> float: ...

    def decoding_cost(self, inputs: Arrays) -> DecodingCost: ...

    def prepare(self, inputs: Arrays) -> Arrays: ...


class FileDecoding:
    """Prepares the images and recordings of requests. Belongs to one event loop.

    Args:
        threads: images of one caller that are decoded at the same moment; there is one more thread for the others.
        memory_bytes: of all images under way; see `MemoryBudget`.
        clock: for deadlines.
    """

    def __init__(self, threads: int, memory_bytes: int, clock: Clock) -> None:
        self._threads = FairThreads(threads + 1)
        self.budget = MemoryBudget(memory_bytes)
        self._clock = clock

    async def cost(self, model: Preparing, inputs: Arrays, size_bytes: int, principal: str) -> DecodingCost:
        """Returns what decoding a request's images costs, from their headers.

        Args:
            model: that gets the images.
            inputs: of the request.
            size_bytes: of the inputs; many headers, and those of large files, are read in a thread.
            principal: the caller.

        Raises:
            InvalidTensorError, PayloadTooLargeError: see `LoadedModel.decoding_cost`.
        """
        encoded = any(array.dtype.hasobject for array in inputs.values())
        inline_bytes = _INLINE_ROW_BYTES if row_count(inputs) <= 1 else _INLINE_BYTES
        if size_bytes <= inline_bytes or not encoded:
            return model.decoding_cost(inputs)
        return await asyncio.wrap_future(self._threads.submit(principal, partial(model.decoding_cost, inputs)))

    @asynccontextmanager
    async def prepared(
        self, model: Preparing, inputs: Arrays, cost: DecodingCost, principal: str, deadline_s: float | None
    ) -> AsyncIterator[Arrays]:
        """Decodes large images, and holds their memory until the end of the `with`.

        Args:
            model: that gets the images.
            inputs: of the request.
            cost: of these inputs, from `cost`.
            principal: the caller.
            deadline_s: of the request, on the clock.

        Yields:
            The prepared rows, or `MeasuredInputs` of the same inputs if their images are small.

        Raises:
            RequestError: an image cannot be decoded.
            CapacityError: the memory was not free in time.
        """
        if is_light(cost, model.row_s):
            yield MeasuredInputs(inputs, cost)
            return
        work = partial(self._prepare, model, inputs, cost, deadline_s)
        async with self.done(work, cost.memory_bytes, principal, deadline_s) as rows:
            yield PreparedRows(rows, inputs)

    @asynccontextmanager
    async def done(
        self, work: Callable[[], _T], memory_bytes: int, principal: str, deadline_s: float | None
    ) -> AsyncIterator[_T]:
        """Does work with images in the threads, and holds its memory until the end of the `with`.

        Args:
            work: is called once.
            memory_bytes: the most that the work and its result hold at one moment.
            principal: the caller.
            deadline_s: of the request, on the clock.

        Yields:
            The result.

        Raises:
            CapacityError: the memory was not free in time.
        """
        now_s = self._clock.monotonic_s()
        wait_s = _PATIENCE_S if deadline_s is None else min(_PATIENCE_S, deadline_s - now_s)
        await self.budget.take(principal, memory_bytes, wait_s)
        release = partial(self.budget.release, principal, memory_bytes)
        loop = asyncio.get_running_loop()
        working = self._threads.submit(principal, work)
        try:
            result = await asyncio.wrap_future(working)
        except BaseException:
            # A caller who leaves does not end what has begun: its memory is held until the thread is done.
            working.add_done_callback(lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(release))
            raise
        try:
            yield result
        finally:
            release()

    def close(self) -> None:
        """Waits for images that are being decoded, and drops the others."""
        self._threads.close()

    def _prepare(self, model: Preparing, inputs: Arrays, cost: DecodingCost, deadline_s: float | None) -> Arrays:
        if deadline_s is not None and self._clock.monotonic_s() >= deadline_s:
            raise DeadlineExceededError("The request's deadline passed before its preparation; allow more time.")
        return model.prepare(MeasuredInputs(inputs, cost))


@dataclass(eq=False, slots=True)
class _Waiting:
    principal: str
    size_bytes: int
    granted: asyncio.Future[None]
    passed: int = 0


class MemoryBudget:
    """Working memory of all images under way. Belongs to one event loop.

    A caller holds at most half of it, or a single request that needs more.

    Args:
        limit_bytes: for all callers together.

    Attributes:
        held_bytes: at this moment.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._of_principal: Counter[str] = Counter()
        self._waiting: deque[_Waiting] = deque()

    async def take(self, principal: str, size_bytes: int, wait_s: float) -> None:
        """Waits for memory and reserves it; `release` returns it.

        Raises:
            PayloadTooLargeError: more than there is.
            QueueFullError: it was not free within `wait_s`.
        """
        if size_bytes > self._limit_bytes:
            raise PayloadTooLargeError(
                f"Preparing the request takes {size_bytes} bytes of memory; at most {self._limit_bytes} are used "
                "(decoding.total_memory_bytes). Send fewer rows, or smaller images, recordings or arrays."
            )
        waiting = _Waiting(principal, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._grant()
        try:
            async with asyncio.timeout(wait_s):
                await waiting.granted
        except BaseException as error:
            if waiting.granted.cancelled():
                self._grant()  # it removes what has left, and others may fit now
            else:
                self.release(principal, size_bytes)
            if isinstance(error, TimeoutError):
                raise QueueFullError(
                    "Other requests take the memory for preparing inputs (decoding.total_memory_bytes); try again.",
                    retry_after_s=1.0,
                ) from error
            raise

    def release(self, principal: str, size_bytes: int) -> None:
        """Returns what `take` reserved."""
        self.held_bytes -= size_bytes
        self._of_principal[principal] -= size_bytes
        if not self._of_principal[principal]:
            del self._of_principal[principal]
        self._grant()

    def _grant(self) -> None:
        """Grants what fits, in order of arrival; a caller that has its part is passed over.

        A request that does not fit lets a limited number of others overtake it.
        """
        blocked: list[_Waiting] = []
        for waiting in tuple(self._waiting):
            if waiting.granted.done():  # its caller has left
                self._waiting.remove(waiting)
                continue
            mine = self._of_principal[waiting.principal]
            if mine and mine + waiting.size_bytes > self._limit_bytes // 2:
                continue
            if self.held_bytes + waiting.size_bytes > self._limit_bytes:
                if waiting.passed >= _PASSES:
                    return
                blocked.append(waiting)
                continue
            for each in blocked:
                each.passed += 1
            self._waiting.remove(waiting)
            self.held_bytes += waiting.size_bytes
            self._of_principal[waiting.principal] += waiting.size_bytes
            waiting.granted.set_result(None)
            if any(each.passed >= _PASSES for each in blocked):
                return


class _Work(NamedTuple):
    principal: str
    result: Future[Any]
    function: Callable[[], object]


class FairThreads:
    """Threads of low priority that serve callers in turn.

    One caller never has all threads: the work of the others would wait for its end.

    Args:
        count: number of threads.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="images", initializer=use_low_priority_in_thread)
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: dict[str, deque[_Work]] = {}
        self._turns: dict[str, int] = {}  # number of the work of each caller that began last, oldest first
        self._begun = 0
        self._running: Counter[str] = Counter()

    def submit(self, principal: str, function: Callable[[], _T]) -> Future[_T]:
        """Runs a function in a thread when it is this caller's turn.

        Raises:
            RuntimeError: after `close`.
        """
        work = _Work(principal, Future(), function)
        with self._lock:
            if self._closed:
                raise RuntimeError("The threads for images are closed.")
            self._waiting.setdefault(principal, deque()).append(work)
            self._start()
        return work.result

    def close(self) -> None:
        """Waits for work that has begun, and cancels the rest."""
        with self._lock:
            self._closed = True
            dropped = [work for queue in self._waiting.values() for work in queue]
            self._waiting.clear()
        for work in dropped:
            work.result.cancel()
        self._executor.shutdown(wait=True)

    def _start(self) -> None:
        """Starts work while there are threads. The caller has the lock."""
        while self._running.total() < self._count and (principal := self._next()) is not None:
            work = self._waiting[principal].popleft()
            if not self._waiting[principal]:
                del self._waiting[principal]
            self._begun += 1
            self._turns.pop(principal, None)
            self._turns[principal] = self._begun
            if len(self._turns) > _REMEMBERED:
                del self._turns[next(iter(self._turns))]
            self._running[principal] += 1
            self._executor.submit(self._run, work)

    def _next(self) -> str | None:
        most = max(1, self._count - 1)
        free = (principal for principal in self._waiting if self._running[principal] < most)
        return min(free, key=lambda principal: self._turns.get(principal, 0), default=None)

    def _run(self, work: _Work) -> None:
        try:
            if work.result.set_running_or_notify_cancel():
                work.result.set_result(work.function())
        except BaseException as error:  # noqa: BLE001 (the waiting request gets it)
            work.result.set_exception(error)
        with self._lock:
            self._running[work.principal] -= 1
            if not self._running[work.principal]:
                del self._running[work.principal]
            self._start()
