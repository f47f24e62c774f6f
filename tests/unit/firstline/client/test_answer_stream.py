"""Following an answer over a server that streams, breaks off, refuses or says nonsense."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import event

from firstline.client import answer_stream, calls
from firstline.client.answer_stream import Event, EventReader
from firstline_core.errors import FirstlineError, ProtocolError, QueueFullError, UnknownAnswerError
from firstline_core.protocol.http import error_reply
from firstline_core.types import Status

EVENTS = "/firstline/v1/answers/id/events"
URL = "http://agent"

Script = list[Callable[[httpx.Request], httpx.Response]]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "_BACKOFF_S", 0.0)


def streaming(*pieces: bytes | httpx.HTTPError) -> Callable[[httpx.Request], httpx.Response]:
    class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for piece in pieces:
                if isinstance(piece, httpx.HTTPError):
                    raise piece
                yield piece

        async def __aiter__(self) -> Any:
            for piece in self:
                yield piece

    return lambda _: httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Pieces())


def refusing(error: FirstlineError) -> Callable[[httpx.Request], httpx.Response]:
    reply = error_reply(error)
    return lambda _: httpx.Response(reply.status, headers=reply.headers, stream=httpx.ByteStream(reply.body))


def of_a_proxy(_: httpx.Request) -> httpx.Response:
    """The answer of a proxy whose server restarts."""
    return httpx.Response(502, stream=httpx.ByteStream(b"<html>502 Bad Gateway</html>"))


class Server:
    """Answers call by call as its script says."""

    def __init__(self, *script: Callable[[httpx.Request], httpx.Response]) -> None:
        self.script = list(script)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.script.pop(0)(request)


@pytest.fixture(params=["sync", "async"])
def followed(request: pytest.FixtureRequest) -> Callable[..., list[tuple[Status, str]]]:
    """Follows a short call to its end with one of the two drivers."""

    def follow(server: Server, patience_s: float = 10.0) -> list[tuple[Status, str]]:
        found = answer_stream.prediction_of(
            calls.infer_file("m", b"x", {"wait": "first"}, client_id="mine"), patience_s
        )
        transport = httpx.MockTransport(server)
        if request.param == "sync":
            with httpx.Client(base_url=URL, transport=transport) as http:
                return [(answer.answer.status, answer.label) for answer in answer_stream.follow(http, found)]

        async def collect() -> list[tuple[Status, str]]:
            async with httpx.AsyncClient(base_url=URL, transport=transport) as http:
                return [
                    (answer.answer.status, answer.label) async for answer in answer_stream.follow_async(http, found)
                ]

        return asyncio.run(collect())

    return follow


Follow = Callable[..., list[tuple[Status, str]]]
BOTH = [(Status.PROVISIONAL, "one"), (Status.FINAL, "two")]


def test_one_call_yields_provisional_and_final_answer(followed: Follow) -> None:
    server = Server(streaming(event(1, Status.PROVISIONAL), b":\n\n", event(2, Status.FINAL, "two")))
    assert followed(server) == BOTH
    (request,) = server.requests
    assert (request.method, request.headers["Accept"], request.url.params["wait"]) == (
        "POST",
        "text/event-stream",
        "first",
    )


@pytest.mark.parametrize(
    "broken",
    [
        streaming(event(1, Status.PROVISIONAL), b"id: 2\nda"),
        streaming(event(1, Status.PROVISIONAL), httpx.ReadError("reset")),
        streaming(event(1, Status.PROVISIONAL), httpx.RemoteProtocolError("incomplete chunked read")),
        streaming(event(1, Status.PROVISIONAL), httpx.ReadTimeout("silent")),
    ],
)
def test_dropped_connection_resumes_after_the_last_event(followed: Follow, broken: Any) -> None:
    full = refusing(QueueFullError("Too many streams."))
    repeated = streaming(event(1, Status.PROVISIONAL), event(2, Status.FINAL, "two"))
    server = Server(broken, full, of_a_proxy, streaming(b":\n\n"), repeated)
    assert followed(server) == BOTH
    again = server.requests[1:]
    assert len(again) == 4
    assert {(request.method, request.url.path, request.headers["Last-Event-ID"]) for request in again} == {
        ("GET", EVENTS, "1")
    }
    assert {request.url.params["form"] for request in again} == {"short"}


def test_no_retry_before_the_first_answer(followed: Follow) -> None:
    """The request may have been answered: whether to send it again is the caller's to say."""
    server = Server(streaming(b":\n\n", httpx.ReadError("reset")))
    with pytest.raises(FirstlineError, match="cannot be reached"):
        followed(server)
    assert len(server.requests) == 1


def test_refusal_is_raised_at_once(followed: Follow) -> None:
    server = Server(streaming(event(1, Status.PROVISIONAL)), refusing(UnknownAnswerError("Gone.")))
    with pytest.raises(UnknownAnswerError, match="Gone"):
        followed(server)


def test_retries_end_after_the_patience(followed: Follow) -> None:
    server = Server(streaming(event(1, Status.PROVISIONAL)), refusing(QueueFullError("Too many streams.")))
    with pytest.raises(FirstlineError):
        followed(server, patience_s=0.0)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("stream", "fault"),
    [(b"<html>\n\n", "field"), (b"id: 1\ndata: [\n\n", "not JSON"), (b"id: 1\ndata: 1\n\n", "not a JSON object")],
)
def test_malformed_stream_is_not_retried(followed: Follow, stream: bytes, fault: str) -> None:
    server = Server(streaming(event(1, Status.PROVISIONAL), stream.replace(b"id: 1", b"id: 2")))
    with pytest.raises(ProtocolError, match=fault):
        followed(server)


@pytest.mark.parametrize("number", [1, 2])
def test_event_of_another_request_is_an_error(followed: Follow, number: int) -> None:
    events = [event(1, Status.PROVISIONAL), event(2, Status.FINAL, "two")]
    events[number - 1] = events[number - 1].replace(b'"mine"', b'"another"')
    with pytest.raises(ProtocolError, match="answer to request 'another', not to mine"):
        followed(Server(streaming(*events)))


def test_answer_without_stream_is_final(followed: Follow) -> None:
    body = event(2, Status.FINAL, "two").removeprefix(b"id: 2\ndata: ").strip()
    server = Server(
        lambda _: httpx.Response(200, headers={"Content-Type": "application/json"}, stream=httpx.ByteStream(body))
    )
    assert followed(server) == BOTH[1:]


def test_no_content_ends_the_stream(followed: Follow) -> None:
    server = Server(
        streaming(event(1, Status.PROVISIONAL)), lambda _: httpx.Response(204, stream=httpx.ByteStream(b""))
    )
    assert followed(server) == BOTH[:1]


STREAM = b':\n\nid: 1\ndata: {"a": 1}\n\n:\n\nid: 2\ndata: {"a": 2}\n\n'
STREAM_EVENTS = [Event(1, b'{"a": 1}'), Event(2, b'{"a": 2}')]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_pieces_of_any_size_give_the_same_events(cuts: list[int]) -> None:
    reader = EventReader()
    bounds = pairwise([0, *sorted(cuts), len(STREAM)])
    assert [event for start, end in bounds for event in reader.read(STREAM[start:end])] == STREAM_EVENTS


def test_space_after_the_colon_is_optional() -> None:
    assert EventReader().read(b"id:1\ndata:x\n\n") == [Event(1, b"x")]


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b"<html>\n\n", "a field b'<html>'"),
        (b"data: x\n\n", "id b''"),
        (b"id: -1\ndata: x\n\n", "id b'-1'"),
        (b"id: " + b"1" * 19 + b"\ndata: x\n\n", "a number is expected"),
        (b"id: 1\r\ndata: x\r\n\r\n" + b"x" * 100, "larger than 64 bytes"),
        (b"id: 1\ndata: " + b"x" * 100, "larger than 64 bytes"),
    ],
)
def test_malformed_events_are_errors(stream: bytes, fault: str) -> None:
    reader = EventReader(limit_bytes=64)
    with pytest.raises(ProtocolError, match=fault):
        reader.read(stream)
