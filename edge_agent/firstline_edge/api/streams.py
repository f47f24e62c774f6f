"""Open event streams: the present answer, then the final or expired one, then the end of the stream.

`firstline_core.protocol.http` defines the events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firstline_core.errors import FirstlineError, NotReadyError, QueueFullError
from firstline_core.protocol.asgi import Streamed
from firstline_core.protocol.http import (
    CONTENT_TYPE,
    EVENT_HEADERS,
    EVENT_STREAM_TYPE,
    HEARTBEAT,
    LAST_ID,
    PROVISIONAL_ID,
    Reply,
    event,
    header,
)
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Status
from firstline_edge.outbox.outbox import Completion, PromiseWaiters

log = logger(__name__)

_HEADERS = MappingProxyType({CONTENT_TYPE: f"{EVENT_STREAM_TYPE}; charset=utf-8", **EVENT_HEADERS})

Render = Callable[[InferResponse], Reply]


def wants_events(headers: Mapping[str, str]) -> bool:
    """Returns whether the Accept header names event streams; `*/*` does not."""
    kinds = (header(headers, "Accept") or "").lower().split(",")
    return any(kind.partition(";")[0].strip() == EVENT_STREAM_TYPE for kind in kinds)


class Streams:
    """The open streams.

    Args:
        waiters: wakes streams whose promise ends.
        limit: of open streams; each holds a connection, and at most one answer for a client that does not read.
        heartbeat_s: silence after which a stream sends a heartbeat.
    """

    def __init__(self, waiters: PromiseWaiters, *, limit: int, heartbeat_s: float) -> None:
        self._waiters = waiters
        self._limit = limit
        self._heartbeat_s = heartbeat_s
        self._open = 0
        self._closed = False

    @contextlib.contextmanager
    def opened(
        self, render: Render, request_id: str, seen: int = 0, is_allowed: Callable[[], bool] = lambda: True
    ) -> Iterator[Stream]:
        """Opens a stream until the context ends; read the present answer only after that.

        Args:
            render: turns an answer into the data of an event.
            request_id: of the answer.
            seen: id of the last event that the caller has received.
            is_allowed: whether the caller may go on; asked before each further piece.

        Raises:
            QueueFullError: too many streams are open.
            NotReadyError: the agent is stopping.
        """
        if self._closed:
            raise NotReadyError("The agent is stopping; try again in a moment.", retry_after_s=1.0)
        if self._open >= self._limit:
            raise QueueFullError(
                f"{self._limit} event streams are open, this agent's limit; try again, or raise api.streams_limit.",
                retry_after_s=1.0,
            )
        self._open += 1
        try:
            with self._waiters.watch(request_id) as completion:
                yield Stream(render, seen, completion, self._heartbeat_s, is_allowed)
        finally:
            self._open -= 1

    def close(self) -> None:
        """Ends all streams before their final event; clients reconnect for it."""
        self._closed = True
        self._waiters.end()


@dataclass(eq=False)
class Stream:
    """One caller's stream, made by `Streams.opened`."""

    render: Render
    seen: int
    completion: Completion
    heartbeat_s: float
    is_allowed: Callable[[], bool]

    def response(self, answer: InferResponse, resources: contextlib.ExitStack) -> Reply | Streamed:
        """Returns the stream as an HTTP answer.

        Args:
            answer: the present answer.
            resources: closed when the stream ends.

        Raises:
            FirstlineError: the answer cannot be rendered.
        """
        if self.seen == LAST_ID:
            return Reply(204, {}, b"")  # a browser's EventSource does not reconnect after it
        is_provisional = answer.answer is not None and answer.answer.status is Status.PROVISIONAL
        first_id = PROVISIONAL_ID if is_provisional else LAST_ID
        first = b"" if first_id <= self.seen else event(first_id, self.render(answer).body)
        return Streamed(dict(_HEADERS), self._events(first, is_last=first_id == LAST_ID), resources.pop_all())

    async def _events(self, first: bytes, *, is_last: bool) -> AsyncGenerator[bytes, None]:
        # The head is sent with the first piece, also to a caller that only waits for the final event.
        yield first or HEARTBEAT
        if is_last:
            return
        while True:
            done, _ = await asyncio.wait({self.completion}, timeout=self.heartbeat_s)
            if not self.is_allowed():
                return  # a caller that reconnects receives the reason
            if done:
                break
            yield HEARTBEAT
        final = self.completion.result()
        if final is not None:
            try:
                last = event(LAST_ID, self.render(final).body)
            except FirstlineError as error:  # a caller that reconnects receives it
                log.warning("answer not streamed", error=error.message)
            else:
                yield last
