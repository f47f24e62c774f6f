"""Open event streams: the present answer, then the final or expired one, then the end of the stream.

`firstline_core.protocol.http` defines the events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

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
from firstline_edge.outbox.outbox import Completion

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
        limit: of open streams; each holds a connection, and at most one answer for a client that does not read.
        heartbeat_s: silence after which a stream sends a heartbeat.
    """

    def __init__(self, *, limit: int, heartbeat_s: float) -> None:
        self._limit = limit
        self._heartbeat_s = heartbeat_s
        self._open: set[asyncio.Future[None]] = set()
        self._closed = False

    @contextlib.contextmanager
    def opened(self, render: Render, seen: int = 0) -> Iterator[Stream]:
        """Opens a stream until the context ends.

        Args:
            render: turns an answer into the data of an event.
            seen: id of the last event that the caller has received.

        Raises:
            QueueFullError: too many streams are open.
            NotReadyError: the agent is stopping.
        """
        if self._closed:
            raise NotReadyError("The agent is stopping; try again in a moment.", retry_after_s=1.0)
        if len(self._open) >= self._limit:
            raise QueueFullError(
                f"{self._limit} event streams are open, this agent's limit; try again, or raise api.streams_limit.",
                retry_after_s=1.0,
            )
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(stopped)
        try:
            yield Stream(render, seen, stopped, self._heartbeat_s)
        finally:
            self._open.discard(stopped)

    def close(self) -> None:
        """Ends all streams before their final event; clients reconnect for it."""
        self._closed = True
        for stopped in self._open:
            if not stopped.done():
                stopped.set_result(None)

    def __len__(self) -> int:
        return len(self._open)


@dataclass(eq=False)
class Stream:
    """One caller's stream, made by `Streams.opened`."""

    render: Render
    seen: int
    stopped: asyncio.Future[None]
    heartbeat_s: float

    def response(
        self, answer: InferResponse, completion: Completion, resources: contextlib.ExitStack
    ) -> Reply | Streamed:
        """Returns the stream as an HTTP answer.

        Args:
            answer: the present answer.
            completion: a future of the final answer, watched since before `answer` was read.
            resources: closed when the stream ends.

        Raises:
            FirstlineError: the answer cannot be rendered.
        """
        if self.seen == LAST_ID:
            return Reply(204, {}, b"")  # a browser's EventSource does not reconnect after it
        is_provisional = answer.answer is not None and answer.answer.status is Status.PROVISIONAL
        first_id = PROVISIONAL_ID if is_provisional else LAST_ID
        first = b"" if first_id <= self.seen else event(first_id, self.render(answer).body)
        events = self._events(first, completion if first_id == PROVISIONAL_ID else None)
        return Streamed(_HEADERS, events, resources.pop_all())

    async def _events(self, first: bytes, completion: Completion | None) -> AsyncGenerator[bytes, None]:
        # The head is sent with the first piece, also to a caller that only waits for the final event.
        yield first or HEARTBEAT
        if completion is None:
            return
        waits: set[asyncio.Future[Any]] = {completion, self.stopped}
        while True:
            done, _ = await asyncio.wait(waits, timeout=self.heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
            yield HEARTBEAT
        final = completion.result() if completion.done() else None
        if final is not None:
            try:
                last = event(LAST_ID, self.render(final).body)
            except FirstlineError as error:  # a caller that reconnects receives it
                log.warning("answer not streamed", error=error.message)
            else:
                yield last
