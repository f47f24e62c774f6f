"""Decodes large images outside of the event loop, within a memory budget per caller and in total.

Small images are decoded where their model runs. Large ones are decoded first, in threads of low priority, so that
they take neither the event loop nor the places of other requests. A caller whose images fill its part of the budget
waits, and does not delay others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, Protocol

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, PayloadTooLargeError, QueueFullError
from firstline_core.processing.image_header import ImageCost
from firstline_core.runtime.priority import use_low_priority_in_thread
from firstline_core.types import Array, Tensor

LIGHT_PIXELS = 500_000
"""Decoding so many takes a few milliseconds at most."""

_INLINE_BYTES, _INLINE_ROWS = 256 * 1024, 64  # their headers are read within a millisecond
_PATIENCE_S = 10.0


class PreparedTensor(Tensor, frozen=True, eq=False):
    """The rows that a model's preprocessing returned for a request, in place of its tensor."""


class Preparing(Protocol):
    """The part of a loaded model that decoding needs."""

    def image_cost(self, tensor: Tensor) -> ImageCost: ...

    def prepare(self, tensor: Tensor) -> Array: ...


class _Waiting(NamedTuple):
    principal: str
    size_bytes: int
    granted: asyncio.Future[None]


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
                f"The request's images take {size_bytes} bytes of memory; at most {self._limit_bytes} are used "
                "(images.total_memory_bytes). Send fewer rows, or smaller images."
            )
        waiting = _Waiting(principal, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._grant()
        try:
            async with asyncio.timeout(wait_s):
                await waiting.granted
        except BaseException as error:
            if waiting.granted.done() and not waiting.granted.cancelled():
                self.release(principal, size_bytes)
            else:
                self._waiting.remove(waiting)
                self._grant()
            if isinstance(error, TimeoutError):
                raise QueueFullError(
                    "Images of other requests take the memory for decoding (images.total_memory_bytes); try again.",
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
        """Grants what fits, in order of arrival; a caller that has its part is passed over."""
        for waiting in tuple(self._waiting):
            mine = self._of_principal[waiting.principal]
            if mine and mine + waiting.size_bytes > self._limit_bytes // 2:
                continue
            if self.held_bytes + waiting.size_bytes > self._limit_bytes:
                return
            self._waiting.remove(waiting)
            if waiting.granted.done():  # its caller has left
                continue
            self.held_bytes += waiting.size_bytes
            self._of_principal[waiting.principal] += waiting.size_bytes
            waiting.granted.set_result(None)


class ImageDecoding:
    """Prepares the images of requests. Belongs to one event loop.

    Args:
        threads: images that are decoded at the same moment.
        memory_bytes: of all images under way; see `MemoryBudget`.
        clock: for deadlines.
    """

    def __init__(self, threads: int, memory_bytes: int, clock: Clock) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="images", initializer=use_low_priority_in_thread)
        self.budget = MemoryBudget(memory_bytes)
        self._clock = clock

    async def cost(self, model: Preparing, tensor: Tensor, size_bytes: int) -> ImageCost:
        """Returns what decoding a request's images costs, from their headers.

        Args:
            model: that gets the images.
            tensor: of the request.
            size_bytes: of the tensor; many headers are read in a thread.

        Raises:
            InvalidTensorError, PayloadTooLargeError: see `LoadedModel.image_cost`.
        """
        if (size_bytes <= _INLINE_BYTES and len(tensor.array) <= _INLINE_ROWS) or not tensor.array.dtype.hasobject:
            return model.image_cost(tensor)
        return await asyncio.get_running_loop().run_in_executor(self._threads, model.image_cost, tensor)

    @asynccontextmanager
    async def prepared(
        self, model: Preparing, tensor: Tensor, cost: ImageCost, principal: str, deadline_s: float | None
    ) -> AsyncIterator[Tensor]:
        """Decodes large images, and holds their memory until the end of the `with`.

        Args:
            model: that gets the images.
            tensor: of the request.
            cost: from `cost`.
            principal: the caller.
            deadline_s: of the request, on the clock.

        Yields:
            The prepared rows, or the same tensor if its images are small.

        Raises:
            RequestError: an image cannot be decoded.
            CapacityError: the memory was not free in time.
        """
        if cost.pixels <= LIGHT_PIXELS:
            yield tensor
            return
        now_s = self._clock.monotonic_s()
        wait_s = _PATIENCE_S if deadline_s is None else min(_PATIENCE_S, deadline_s - now_s)
        await self.budget.take(principal, cost.memory_bytes, wait_s)
        release = partial(self.budget.release, principal, cost.memory_bytes)
        loop = asyncio.get_running_loop()
        decoding = self._threads.submit(self._prepare, model, tensor, deadline_s)
        try:
            rows = await asyncio.wrap_future(decoding)
        except BaseException:
            # A caller who leaves does not end what has begun: its memory is held until the thread is done.
            decoding.add_done_callback(lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(release))
            raise
        try:
            yield PreparedTensor(tensor.name, rows)
        finally:
            release()

    def close(self) -> None:
        """Waits for images that are being decoded, and drops the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, model: Preparing, tensor: Tensor, deadline_s: float | None) -> Array:
        if deadline_s is not None and self._clock.monotonic_s() >= deadline_s:
            raise DeadlineExceededError(
                "The request's deadline passed before its images were decoded; allow more time."
            )
        return model.prepare(tensor)
