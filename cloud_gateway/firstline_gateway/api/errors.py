"""Answers every failure in JSON: those of the project, of the framework, and unexpected ones.

The form is `{"error": sentence, "code": code}`, as in V2; below /fleet/ it is `application/problem+json` (RFC 9457),
with the same codes and statuses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firstline_core.errors import FirstlineError, LinkDownError, NoRoomError, NotReadyError, RequestError, did_you_mean
from firstline_core.protocol.asgi import send_reply
from firstline_core.protocol.http import CONTENT_TYPE, JSON_TYPE, Reply, error_body, error_reply, status_of
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import wanted_value
from firstline_gateway.api.messages import response_of
from firstline_gateway.telemetry.journal import unexpected

_QUOTED = re.compile("'([^']+)'")
PROBLEMS_BELOW = "/fleet/"

log = logger(__name__)


def install(app: FastAPI, on_error: Callable[[FirstlineError], None]) -> None:
    """Installs the handlers that answer failures in JSON.

    Args:
        app: the framework's application.
        on_error: called for each unexpected failure.
    """
    app.add_exception_handler(FirstlineError, _project_error)
    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameter)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_middleware(LastResort, on_error=on_error)


async def _project_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FirstlineError)  # noqa: S101 (what it is registered for)
    _logged(error)
    if not request.url.path.startswith(PROBLEMS_BELOW):
        return response_of(error_reply(error))
    # On a device it means that an update does not fit on the disk; here, that the server cannot store the data.
    status = HTTPStatus.INSUFFICIENT_STORAGE if isinstance(error, NoRoomError) else status_of(error)
    return _problem(status, error)


def _logged(error: FirstlineError) -> FirstlineError:
    """Logs a refusal of the control plane under an id."""
    log.info("request refused", request_id=error.identify(), code=error.code, error=error.message)
    return error


async def _framework_error(request: Request, error: Exception) -> Response:
    """Answers 404 and 405, which the router raises."""
    assert isinstance(error, HTTPException)  # noqa: S101
    path = request.url.path[:200]
    sentence = {
        404: f"There is no endpoint {path}; GET /openapi.json lists the endpoints.",
        405: f"{path} does not take {request.method}; use {(error.headers or {}).get('Allow', 'another method')}.",
    }.get(error.status_code, HTTPStatus(error.status_code).description)
    described = _logged(RequestError(sentence))
    if path.startswith(PROBLEMS_BELOW):
        response = _problem(error.status_code, described)
    else:
        response = response_of(Reply(error.status_code, {CONTENT_TYPE: JSON_TYPE}, error_body(described)))
    response.headers.update(error.headers or {})
    return response


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    sentence = " ".join(
        f"Parameter '{each['loc'][-1]}' is {shown(each.get('input'))}; it has to be "
        f"{wanted_value(each['msg'])}"
        f"{did_you_mean(each.get('input'), _QUOTED.findall(each['msg']))}"
        for each in error.errors()
    )
    return await _project_error(request, RequestError(sentence))


async def _disconnected(request: Request, _error: Exception) -> Response:
    """Ends the request of a client that has left; it must not count as a failure in the log."""
    return await _project_error(request, LinkDownError("The client closed the connection before the body was whole."))


def _problem(status: int, error: FirstlineError) -> Response:
    # "about:blank": the title is the status' own, and there is no page about the problem (section 4.2.1).
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.public,
        "code": error.code,
        "request_id": error.identify(),
    }
    if error.retry_after_s is not None:
        body["retry_after_s"] = round(error.retry_after_s, 3)
    headers = error_reply(error).headers | {CONTENT_TYPE: "application/problem+json", "Cache-Control": "no-store"}
    return Response(msgspec.json.encode(body), status, headers)


class LastResort:
    """The outermost handler: logs unexpected failures under an id, and answers with that id."""

    def __init__(self, app: ASGIApp, on_error: Callable[[FirstlineError], None]) -> None:
        self._app = app
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            # The server stops and cancels the request; by itself it would answer in plain text.
            if started:
                raise
            await send_reply(shutting_down(), send)
        except Exception as error:  # the outermost loop of a request
            reply = unexpected_failure(error, scope.get("path", ""), self._on_error)
            if started:
                raise  # half an answer is out; only closing the connection tells the client
            await send_reply(reply, send)


def shutting_down() -> Reply:
    """Returns the answer to a request that the server cancels when it stops."""
    return error_reply(NotReadyError("This gateway is shutting down; send the request again."))


def unexpected_failure(error: Exception, path: str, on_error: Callable[[FirstlineError], None]) -> Reply:
    """Logs a failure of the gateway's own code under an id, and returns the answer that names only this id."""
    described = unexpected(error, path=path)
    on_error(described)
    return error_reply(described)
