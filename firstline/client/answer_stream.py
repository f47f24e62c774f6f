"""Follows one answer until it is final, over connections that may drop: server-sent events, for both clients.

The reader of events is strict: a malformed stream is an error, not an answer that never arrives.
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic
from urllib.parse import quote

import httpx

from firstline.client import connection
from firstline.client.calls import Answered, Call, check_request_id, json_from, read_infer
from firstline.client.results import Prediction, prediction_from
from firstline.client.retries import is_temporary
from firstline_core.errors import (
    FirstlineError,
    LinkDownError,
    ProtocolError,
    RequestError,
)
from firstline_core.protocol import oip
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.protocol.http import error_from
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.types import InferResponse, Status

_END = b"\n\n"
EVENT_STREAM_TYPE = "text/event-stream"
DEFAULT_PATIENCE_S = 60.0

_STREAM_HEADERS = {"Accept": EVENT_STREAM_TYPE, "Accept-Encoding": "identity"}  # events are bounded as they arrive

_BACKOFF_S = 0.5
_BACKOFF_MAX_S = 5.0
_RNG = random.Random()  # noqa: S311 (jitter)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: a number that increases within a stream, and its data."""

    id: int
    data: bytes


class EventReader:
    """Assembles the pieces of one stream.

    Args:
        limit_bytes: the largest event.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMITS.body_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()

    def read(self, piece: bytes) -> list[Event]:
        """Returns the events that this piece completes.

        Raises:
            ProtocolError: an event is malformed, or over the limit.
        """
        searched = max(0, len(self._held) - 1)  # an end may lie across two pieces
        self._held += piece
        events: list[Event] = []
        start = 0
        while (end := self._held.find(_END, max(start, searched))) >= 0:
            event = _event(bytes(self._held[start:end]))
            if event is not None:
                events.append(event)
            start = end + len(_END)
        del self._held[:start]
        if len(self._held) > self._limit_bytes:
            raise ProtocolError(f"An event is larger than {self._limit_bytes} bytes, the most that is read.")
        return events


def _event(block: bytes) -> Event | None:
    """Reads the lines of one block; returns None for a comment, which only keeps the stream alive."""
    fields = {b"id": b"", b"data": b""}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name in fields:
            fields[name] += value.removeprefix(b" ")
        elif name:  # a comment has none
            raise ProtocolError(f"The event stream has a field {name[:40]!r}, which no Firstline server writes.")
    if not fields[b"data"]:
        return None
    if not fields[b"id"].isdigit() or len(fields[b"id"]) > 18:
        raise ProtocolError(f"The event stream has an event with the id {fields[b'id'][:40]!r}; a number is expected.")
    return Event(int(fields[b"id"]), fields[b"data"])


class Following(Generic[Answered]):
    """The state of one answer that is followed: the last event, and the time left for retries.

    Args:
        form: format of the answers, a value of the query parameter `form`.
        read: decodes an event's data.
        read_whole: decodes the response of a server that does not stream.
        patience_s: how long to retry while the server cannot be reached (seconds).
        request_id: id of the answer; "" until the first event names it.
        first: the first call, if it is not the request for the events.
    """

    def __init__(
        self,
        form: str,
        read: Callable[[bytes], Answered],
        read_whole: Callable[[httpx.Response], Answered],
        patience_s: float,
        *,
        request_id: str = "",
        first: Call[Answered] | None = None,
    ) -> None:
        self._form = form
        self._read = read
        self._read_whole = read_whole
        self._patience_s = patience_s
        self._request_id = request_id
        self._first = first
        self._seen = 0
        self._reader = EventReader()
        self._failure: FirstlineError = LinkDownError("")
        self._failures = 0
        self._failing_since_s: float | None = None
        self.done = False

    def next_call(self) -> Call[Answered]:
        """Returns the next call to send."""
        first, self._first = self._first, None
        self._reader = EventReader()
        if first is not None:
            return first
        path = f"/firstline/v1/answers/{quote(self._request_id, safe='')}/events"
        headers = {**_STREAM_HEADERS, "Last-Event-ID": str(self._seen)}
        return Call("GET", path, self._read_whole, headers=headers, params={"form": self._form})

    def connected(self, response: httpx.Response) -> bool:
        """Returns whether events follow; otherwise the caller reads the body for `read_response`."""
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if response.status_code == httpx.codes.OK and kind == EVENT_STREAM_TYPE:
            self._failures, self._failing_since_s = 0, None
            return True
        return False

    def read_response(self, response: httpx.Response) -> list[Answered]:
        """Reads the response of a server that does not stream: an error, or the final answer.

        Raises:
            FirstlineError: the server's error.
        """
        self.done = response.status_code == httpx.codes.NO_CONTENT
        if self.done:
            return []
        answer = self._read_whole(response)
        self.done = True
        return [answer]

    def read_piece(self, piece: bytes) -> list[Answered]:
        """Returns the answers that this piece of the stream completes, each once.

        Raises:
            FirstlineError: the job was refused or failed.
            ProtocolError: a Firstline server does not send such a stream.
        """
        answers: list[Answered] = []
        for event in self._reader.read(piece):
            if event.id <= self._seen:
                continue
            if (refused := _refusal(event.data)) is not None:
                self.done = True
                raise refused
            answer = self._read(event.data)
            if answer.answer is None:
                raise ProtocolError("An event's answer does not say how it came about.")
            check_request_id(answer.answer, self._request_id or answer.answer.request_id, "The event stream")
            self._seen, self._request_id = event.id, answer.answer.request_id
            self.done = answer.answer.status is not Status.PROVISIONAL
            answers.append(answer)
        return answers

    @contextmanager
    def attempt(self, url: str) -> Iterator[None]:
        """Remembers why one connection ended before the final answer, if a retry may help.

        Raises:
            FirstlineError: no retry helps.
        """
        self._failure = LinkDownError("The event stream ended before its last word.")
        try:
            yield
        except httpx.HTTPError as error:
            self._failure = connection.link_error(error, url)
        except FirstlineError as error:
            if self.done or not is_temporary(error):  # what came of a job: asking again gives the same
                raise
            self._failure = error

    def wait_s(self) -> float:
        """Returns the time to wait before the next call: exponential backoff with full jitter (seconds).

        Raises:
            FirstlineError: why the connection ended, if no answer was seen yet or the time for retries is over.
        """
        now_s = time.monotonic()
        self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        if not self._request_id or now_s - self._failing_since_s >= self._patience_s:
            raise self._failure
        drawn_s = full_jitter_s(_RNG, self._failures, base_s=_BACKOFF_S, max_s=_BACKOFF_MAX_S)
        self._failures += 1
        return min(self._patience_s, self._failure.retry_after_s or 0.0) + drawn_s


def tensors_of(request_id: str, patience_s: float) -> Following[InferResponse]:
    """Follows the answer with an id, as tensors."""
    return Following("v2", _tensors, read_infer, patience_s, request_id=request_id)


def prediction_of(call: Call[Prediction], patience_s: float) -> Following[Prediction]:
    """Follows the answer to a call of the endpoint for files, as typed answers."""
    first = replace(call, headers={**(call.headers or {}), **_STREAM_HEADERS})
    read = partial(_prediction, sent_id=(call.params or {}).get("id", ""))
    return Following("short", read, call.read, patience_s, first=first)


def _refusal(data: bytes) -> FirstlineError | None:
    """Returns the error in an event, if the job was refused or failed."""
    if not data.startswith(b'{"error":'):
        return None
    return error_from(httpx.codes.INTERNAL_SERVER_ERROR, data, {})


def _tensors(data: bytes) -> InferResponse:
    try:
        return oip.decode_response(data, None)
    except RequestError as error:
        raise ProtocolError(f"The event stream does not say what a V2 server says. {error.message}") from error


def _prediction(data: bytes, sent_id: str) -> Prediction:
    return prediction_from(json_from(data, "The event stream"), "The event stream", sent_id)


def follow(http: httpx.Client, following: Following[Answered]) -> Iterator[Answered]:
    """Yields the answers as they arrive, until the final one.

    Raises:
        FirstlineError: the server refuses, or cannot be reached any longer.
    """
    while not following.done:
        with following.attempt(str(http.base_url)):
            call = following.next_call()
            with http.stream(
                call.method, call.path, content=call.content, headers=call.headers, params=call.params
            ) as response:
                if following.connected(response):
                    for piece in response.iter_raw():
                        yield from following.read_piece(piece)
                else:
                    yield from following.read_response(connection.read_whole(response))
        if not following.done:
            time.sleep(following.wait_s())


async def follow_async(http: httpx.AsyncClient, following: Following[Answered]) -> AsyncIterator[Answered]:
    """`follow` for asyncio."""
    while not following.done:
        with following.attempt(str(http.base_url)):
            call = following.next_call()
            async with http.stream(
                call.method, call.path, content=call.content, headers=call.headers, params=call.params
            ) as response:
                if following.connected(response):
                    async for piece in response.aiter_raw():
                        for answer in following.read_piece(piece):
                            yield answer
                else:
                    for answer in following.read_response(await connection.read_whole_async(response)):
                        yield answer
        if not following.done:
            await asyncio.sleep(following.wait_s())
