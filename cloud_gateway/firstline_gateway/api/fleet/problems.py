"""Errors as `application/problem+json` (RFC 9457), with the codes and statuses of the rest of the API."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from firstline_core.errors import FirstlineError, NoRoomError
from firstline_core.protocol.http_errors import status_of

PREFIX = "/fleet/"
"""Errors of endpoints below this path have this form."""


def problem(status: int, detail: str, code: str, retry_after_s: float | None = None) -> Response:
    """Returns an error; `detail` is a sentence for people and `code` a word for programs."""
    # "about:blank": the title is the status' own, and there is no page about the problem (section 4.2.1).
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    headers = {"Content-Type": "application/problem+json", "Cache-Control": "no-store"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
        body["retry_after_s"] = round(retry_after_s, 3)
    return Response(msgspec.json.encode(body), status, headers)


def problem_of(error: FirstlineError) -> Response:
    """Returns the response for an error."""
    # On a device it means that an update does not fit on the disk; here, that the server cannot store the data.
    status = HTTPStatus.INSUFFICIENT_STORAGE if isinstance(error, NoRoomError) else status_of(error)
    return problem(status, error.message, error.code, error.retry_after_s)
