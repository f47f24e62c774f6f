"""Server-sent events: an answer as it stands, then its last word, then the end of the stream.

The ids are the same for every answer and whoever asks: 1 is the provisional answer, 2 its last word (final or
expired). So a client that comes back with `Last-Event-ID`, also to a restarted agent, misses nothing and hears
nothing twice. https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from firstline_core.errors import FirstlineError, NotReadyError, QueueFullError, RequestError
from firstline_core.protocol.http import Reply
from firstline_core.protocol.http_errors import header
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Status
from firstline_edge.outbox.endings import Ending

log = logger(__name__)

EVENT_STREAM_TYPE = "text/event-stream"
PROVISIONAL_ID, LAST_ID = 1, 2
_HEARTBEAT = b":\n\n"
# A proxy that gathers what it passes on would hold back the last word.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Render = Callable[[InferResponse], Reply]


def wants_events(headers: Mapping[str, str]) -> bool:
    """Whether a caller accepts an event stream by its name; `*/*` does not ask for one."""
    kinds = (header(headers, "Accept") or "").lower().split(",")
    return any(kind.partition(";")[0].strip() == EVENT_STREAM_TYPE for kind in kinds)


def last_event_id(headers: Mapping[str, str]) -> int:
    """The id of the last event that a caller has seen; 0 for none.

    Raises:
        RequestError: no event ever had it.
    """
    said = header(headers, "Last-Event-ID") or "0"
    if said not in ("0", str(PROVISIONAL_ID), str(LAST_ID)):
        raise RequestError(
            f"Last-Event-ID is {shown(said)}; events have the ids {PROVISIONAL_ID} and {LAST_ID}. Leave the header out "
            "to start from the beginning."
        )
    return int(said)


class Streams:
    """The streams that are open.

    Args:
        limit: of them; each holds a connection, and one answer at most for a reader that does not read.
        heartbeat_s: silence after which a stream says that it is alive.
    """

    def __init__(self, *, limit: int, heartbeat_s: float) -> None:
        self._limit = limit
        self._heartbeat_s = heartbeat_s
        self._open: set[asyncio.Future[None]] = set()
        self._closed = False

    @contextlib.contextmanager
    def opened(self, render: Render, seen: int = 0) -> Iterator[Stream]:
        """Room for one stream, until the context ends.

        Args:
            render: an answer as the data of an event.
            seen: id of the last event that the caller has.

        Raises:
            QueueFullError: too many are open.
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
        """Ends them all, before their last word: whoever wants it comes back for it."""
        self._closed = True
        for stopped in self._open:
            if not stopped.done():
                stopped.set_result(None)

    def __len__(self) -> int:
        return len(self._open)


class Stream:
    """One caller's stream; made by `Streams.opened`."""

    def __init__(self, render: Render, seen: int, stopped: asyncio.Future[None], heartbeat_s: float) -> None:
        self._render = render
        self._seen = seen
        self._stopped = stopped
        self._heartbeat_s = heartbeat_s

    def response(self, answer: InferResponse, ending: Ending, held: contextlib.ExitStack) -> Response:
        """What the caller gets.

        Args:
            answer: as it stands.
            ending: watched since before `answer` was known.
            held: taken over, and closed when the stream is over.

        Raises:
            FirstlineError: the answer cannot be rendered.
        """
        if self._seen == LAST_ID:
            return Response(status_code=204)  # tells a browser's EventSource not to come back
        first_id = PROVISIONAL_ID if _is_provisional(answer) else LAST_ID
        first = b"" if first_id <= self._seen else _event(first_id, self._render(answer))
        return _HeldResponse(self._events(first, ending if first_id == PROVISIONAL_ID else None), held.pop_all())

    async def _events(self, first: bytes, ending: Ending | None) -> AsyncIterator[bytes]:
        # The head goes out with the first piece: a caller who waits for the last word alone gets it at once, too.
        yield first or _HEARTBEAT
        if ending is None:
            return
        waits: set[asyncio.Future[Any]] = {ending, self._stopped}
        while True:
            done, _ = await asyncio.wait(waits, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
            yield _HEARTBEAT
        final = ending.result() if ending.done() else None
        if final is not None:
            try:
                last = _event(LAST_ID, self._render(final))
            except FirstlineError as error:  # told to whoever asks again
                log.warning("an answer cannot be streamed", error=error.message)
            else:
                yield last


class _HeldResponse(StreamingResponse):
    """An event stream that gives back what it holds, however it ends."""

    def __init__(self, events: AsyncIterator[bytes], held: contextlib.ExitStack) -> None:
        super().__init__(events, headers=_HEADERS, media_type=EVENT_STREAM_TYPE)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            if scope["method"] == "HEAD":
                await Response(headers=dict(self.headers))(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)


def _is_provisional(response: InferResponse) -> bool:
    return response.answer is not None and response.answer.status is Status.PROVISIONAL


def _event(event_id: int, reply: Reply) -> bytes:
    """One event; JSON as it is written here has no line breaks."""
    return b"id: %d\ndata: %b\n\n" % (event_id, reply.body)
