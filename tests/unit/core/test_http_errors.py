"""Errors to statuses and back."""

from __future__ import annotations

import io
from http.client import HTTPResponse

import orjson
import pytest

from firstline_core.errors import (
    BY_CODE,
    CapacityError,
    FirstlineError,
    LinkError,
    ProtocolError,
    QueueFullError,
    RateLimitedError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.protocol.http import error_reply
from firstline_core.protocol.http_errors import closing_response, error_body, error_from, status_of

STATUSES = {
    "invalid_request": 400,
    "invalid_tensor": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "unknown_model": 404,
    "unknown_answer": 404,
    "not_found": 404,
    "conflict": 409,
    "metadata_rollback": 409,
    "metadata_mismatch": 409,
    "incompatible_target": 409,
    "self_test_failed": 409,
    "no_room": 409,
    "signature": 422,
    "metadata_expired": 422,
    "model_mismatch": 409,
    "request_id_reused": 409,
    "payload_too_large": 413,
    "unavailable": 503,
    "queue_full": 503,
    "shedding": 503,
    "rate_limited": 429,
    "store_unavailable": 503,
    "engine_unavailable": 503,
    "not_ready": 503,
    "budget_exceeded": 503,
    "link_error": 503,
    "link_down": 503,
    "protocol_error": 503,
    "deadline_exceeded": 504,
    "remote_timeout": 504,
}


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_code_has_its_status_and_finds_its_way_back(code: str) -> None:
    error = BY_CODE[code]("What was wrong.", retry_after_s=1.2)
    reply = error_reply(error)
    assert reply.status == status_of(error) == STATUSES.get(code, 500)
    assert reply.headers["Retry-After"] == "2"
    back = error_from(reply.status, reply.body, reply.headers)
    assert type(back) is BY_CODE[code]
    assert (back.message, back.retry_after_s) == ("What was wrong.", 1.2)


def test_a_caller_without_a_token_is_told_the_scheme() -> None:
    assert error_reply(UnauthorizedError("No token.")).headers["WWW-Authenticate"] == "Bearer"


def test_no_retry_after_where_none_is_known() -> None:
    reply = error_reply(QueueFullError("Full."))
    assert "Retry-After" not in reply.headers
    assert orjson.loads(reply.body) == {"error": "Full.", "code": "queue_full"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, RateLimitedError),
        (403, UnauthorizedError),
        (418, RequestError),
        (502, LinkError),
        (503, CapacityError),
        (500, FirstlineError),
        (302, ProtocolError),
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"error":"x","code":"new_code"}', b'{"error":7,"code":[]}', b"\xff"]
)
def test_without_our_code_the_status_decides(status: int, kind: type[FirstlineError], body: bytes) -> None:
    assert type(error_from(status, body)) is kind


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("²", None),
        ("2592000", 86_400.0),
        ("9" * 400, 86_400.0),
    ],
)
def test_retry_after_of_another_server(value: str, seconds: float | None) -> None:
    assert error_from(503, b"", {"retry-after": value}).retry_after_s == seconds


def test_a_wait_beyond_all_reason_can_be_passed_on() -> None:
    for said in (b'{"retry_after_s": 1e308}', b'{"retry_after_s": 99999999999999999}'):
        assert error_reply(error_from(503, said)).headers["Retry-After"] == "86400"
    assert error_reply(error_from(503, b"<html>", {"Retry-After": "9" * 400})).headers["Retry-After"] == "86400"


def test_a_long_message_is_cut() -> None:
    assert len(error_from(500, orjson.dumps({"error": "a" * 100_000})).message) == 1000


def test_a_closing_response_is_a_whole_one() -> None:
    class Wire:
        def makefile(self, _mode: str) -> io.BytesIO:
            return io.BytesIO(closing_response(431, "The head is too large."))

    response = HTTPResponse(Wire())  # type: ignore[arg-type]
    response.begin()
    assert (response.status, response.reason) == (431, "Request Header Fields Too Large")
    assert response.getheader("Connection") == "close"
    body = response.read()
    assert len(body) == int(response.getheader("Content-Length") or 0)
    assert type(error_from(431, body)) is RequestError


def test_a_wait_is_said_in_milliseconds_at_the_finest() -> None:
    assert orjson.loads(error_body(QueueFullError("Full.", retry_after_s=0.123456789)))["retry_after_s"] == 0.123
