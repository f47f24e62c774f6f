"""A client that follows a stream gets every answer once and in order, wherever the stream breaks off."""

from unittest.mock import patch

import httpx
from hypothesis import given
from hypothesis import strategies as st
from support.answers import event

from firstline.client import answer_stream, calls
from firstline_core.types import Status

FIRST, LAST = event(1, Status.PROVISIONAL), event(2, Status.FINAL)


@given(
    drops=st.lists(st.integers(0, len(FIRST) + len(LAST)), max_size=6), heartbeats=st.integers(0, 2), ends=st.booleans()
)
def test_every_answer_once(drops: list[int], heartbeats: int, ends: bool) -> None:
    left = [len(FIRST), *drops]  # the call itself is not repeated, so its first answer comes through

    class Broken(httpx.SyncByteStream):
        def __init__(self, body: bytes, whole: bool) -> None:
            self.body, self.whole = body, whole

        def __iter__(self):
            yield self.body
            if not self.whole and not ends:
                raise httpx.ReadError("reset")

    def server(request: httpx.Request) -> httpx.Response:
        seen = int(request.headers.get("Last-Event-ID", "0"))
        body = {0: FIRST, 1: b""}[seen] + b":\n\n" * heartbeats + LAST
        taken = left.pop(0) if left else len(body)
        stream = Broken(body[:taken], taken >= len(body))
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=stream)

    with (
        patch.object(answer_stream, "_BACKOFF_S", 0.0),
        httpx.Client(base_url="http://agent", transport=httpx.MockTransport(server)) as http,
    ):
        answers = answer_stream.follow(
            http, answer_stream.prediction_of(calls.infer_file("m", b"x", {}, client_id="mine"), patience_s=10)
        )
        assert [found.answer.status for found in answers] == [Status.PROVISIONAL, Status.FINAL]
