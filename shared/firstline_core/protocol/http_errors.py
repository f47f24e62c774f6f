"""Errors on the wire: the one error -> status table, the JSON body, and the way back for clients."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson

from firstline_core import errors
from firstline_core.errors import FirstlineError

RETRY_AFTER = "Retry-After"

# The one error -> status table, with Triton's statuses. A class without a line takes its parent's.
_STATUS: dict[type[FirstlineError], int] = {
    errors.RequestError: 400,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
    errors.UnknownModelError: 404,
    errors.UnknownAnswerError: 404,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.ModelMismatchError: 409,
    errors.ReusedRequestIdError: 409,
    errors.PayloadTooLargeError: 413,
    errors.RateLimitedError: 429,
    errors.SignatureError: 422,
    errors.MetadataExpiredError: 422,
    errors.MetadataRollbackError: 409,
    errors.MetadataMismatchError: 409,
    errors.IncompatibleTargetError: 409,
    errors.SelfTestError: 409,
    errors.NoRoomError: 409,
    errors.CapacityError: 503,
    errors.LinkError: 503,
    errors.DeadlineExceededError: 504,
    errors.RemoteTimeoutError: 504,
    FirstlineError: 500,
}

# The other way, for what a proxy or another server says without one of our codes.
_BY_STATUS: dict[int, type[FirstlineError]] = {
    401: errors.UnauthorizedError,
    403: errors.UnauthorizedError,
    404: errors.UnknownModelError,
    408: errors.RemoteTimeoutError,
    409: errors.ModelMismatchError,
    413: errors.PayloadTooLargeError,
    429: errors.RateLimitedError,
    502: errors.LinkError,
    503: errors.CapacityError,
    504: errors.RemoteTimeoutError,
}

_MESSAGE_CHARS = 1000
# A server that asks for more means "not today"; and whoever passes it on must be able to write it.
_RETRY_AFTER_MAX_S = 86_400.0


def status_of(error: FirstlineError) -> int:
    """The HTTP status of an error."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def error_body(error: FirstlineError) -> bytes:
    """`{"error": sentence, "code": code}`, with `retry_after_s` and `request_id` where they are known."""
    body: dict[str, Any] = {"error": error.message, "code": error.code}
    if error.retry_after_s is not None:
        body["retry_after_s"] = round(error.retry_after_s, 3)
    if error.request_id:
        body["request_id"] = error.request_id
    return orjson.dumps(body)


def closing_response(status: int, sentence: str) -> bytes:
    """A whole HTTP/1.1 response that ends its connection, for bytes that never became a request."""
    body = error_body(errors.RequestError(sentence))
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode("ascii") + body


def error_from(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> FirstlineError:
    """Returns the error in a server's reply, by its code, or otherwise by its status.

    Args:
        status: any but 2xx.
        body: read as `error_body` wrote it, or as RFC 9457 has it, where it is one.
        headers: for Retry-After, in seconds, at most a day; its date form is passed over.
    """
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        said = {}
    code, message, wait_s = said.get("code"), said.get("error", said.get("detail")), said.get("retry_after_s")
    if not isinstance(message, str) or not message:
        message = f"The server answered with HTTP status {status} and no reason."
    retry_after_s: float | None = None
    if isinstance(wait_s, int | float) and not isinstance(wait_s, bool) and wait_s >= 0:
        retry_after_s = min(float(wait_s), _RETRY_AFTER_MAX_S)
    elif (after := header(headers or {}, RETRY_AFTER)) is not None and after.isascii() and after.isdigit():
        retry_after_s = min(float(after), _RETRY_AFTER_MAX_S)
    kind = errors.BY_CODE.get(code) if isinstance(code, str) else None
    return (kind or _kind_of(status))(message[:_MESSAGE_CHARS], retry_after_s=retry_after_s)


class Lowered(dict[str, str]):
    """Headers whose names are all lower-case, so that one look tells whether one is there.

    Attributes:
        form: result of `http_body.body_form`, stored after its first call.
    """

    form: Any = None


def header(headers: Mapping[str, str], name: str) -> str | None:
    """A header's value without its outer spaces, whatever the case of its name; None where it is absent."""
    wanted = name.lower()
    value = headers.get(wanted)  # ASGI servers lower them all
    if value is None and not isinstance(headers, Lowered):
        value = next((text for key, text in headers.items() if key.lower() == wanted), None)
    return None if value is None else value.strip()


def _kind_of(status: int) -> type[FirstlineError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return errors.RequestError
    return FirstlineError if status >= 500 else errors.ProtocolError
