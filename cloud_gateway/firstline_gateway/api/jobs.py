"""Jobs over HTTP: submitted with `Prefer: respond-async` (RFC 7240), and fetched by the id in the answer.

A client polls, waits (`Prefer: wait=SECONDS`), or receives the answer as a server-sent event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Depends, Query, Request
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from firstline_core.errors import FirstlineError
from firstline_core.file_route import FileRoute
from firstline_core.ids import new_request_id
from firstline_core.protocol import http
from firstline_core.protocol.asgi import query_parameters
from firstline_core.protocol.http import Reply
from firstline_core.protocol.oip import Encoded, decode_response, encode_response
from firstline_core.protocol.openapi import BINARY_ANSWER, NO_MORE_EVENTS, TEXT, VIEW, request_header
from firstline_core.types import InferRequest
from firstline_gateway.api.auth import Principal, authorize, is_still_authorized, scope
from firstline_gateway.api.messages import json_response, known_parameters, response_of
from firstline_gateway.api.services import FilesDep, IdentityDep, JobsDep
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.jobs.records import RUNNING, Job
from firstline_gateway.serving.data_plane import GatewayDataPlane

WAIT_LIMIT_S = 60
"""Longest wait for one reply: proxies would time out after it."""
HEARTBEAT_S = 15.0

_PREFER = "respond-async"
_COME_BACK_S = "1"
Form = Annotated[Literal["short", "v2"], Query(description="As short JSON, or as tensors.")]
_WAIT = request_header(
    "Prefer",
    f"wait=SECONDS: how long to wait for the answer (RFC 7240), at most {WAIT_LIMIT_S}.",
    {"type": "string", "pattern": "^wait=[0-9]+$"},
)
_LAST_EVENT_ID = request_header(
    "Last-Event-ID",
    "The id of the last event received; after 2 there are no more, and the answer is 204.",
    {"enum": ["0", "1", "2"]},
)


def is_asynchronous(headers: Mapping[str, str]) -> bool:
    """Returns whether the caller asks for a job; `headers` have lower-case names."""
    return _PREFER in _preferences(headers.get("prefer", ""))


async def submit(plane: GatewayDataPlane, jobs: Jobs, request: InferRequest) -> Reply:
    """Accepts a job once it is in the store.

    Raises:
        RequestError: the request is not valid.
        CapacityError: there is no room for the job, or the store is not available.
    """
    request = replace(request, request_id=new_request_id())  # a device's own may be an escalation's
    plane.check(request)
    await jobs.submit(request)
    reply = http.json_reply(_pending(request.request_id, request.model), 202)
    reply.headers["Location"] = f"/firstline/v1/answers/{request.request_id}"
    reply.headers["Preference-Applied"] = _PREFER
    return reply


class _OwnJobs(NamedTuple):
    """The jobs of the caller of a request."""

    jobs: Jobs
    identity: IdentityService
    request: Request
    principal: str

    async def find(self, job_id: str) -> Job:
        """Returns a job; raises as `Jobs.find`."""
        return await self.jobs.find(job_id, self.principal)

    def watch(self, job_id: str) -> AbstractContextManager[asyncio.Future[None]]:
        """Returns what is done when a job has ended; raises as `Waiters.watch`."""
        return self.jobs.waiters.watch(job_id, self.principal)

    async def wait_for(self, job_id: str, wait_s: float) -> Job:
        """Returns a job once it has ended, or after `wait_s`.

        Raises:
            UnauthorizedError: the caller is not accepted any more.
            QueueFullError: too many callers wait.
            FirstlineError: as `Jobs.find`.
        """
        with self.watch(job_id) as ending:
            job = await self.find(job_id)
            if job.status != RUNNING:
                return job
            if not await self.wait_while_authorized(ending, wait_s):
                await authorize(self.identity, self.request, "infer")  # raises the reason
        return await self.find(job_id)

    async def wait_while_authorized(self, ending: asyncio.Future[None], within_s: float) -> bool:
        """Waits for the end of a job; returns False if the caller has left or is not accepted any more.

        It checks as often as revocations are read. A revoked caller stops waiting when its requests are refused.
        """
        until_s = asyncio.get_running_loop().time() + within_s
        while not ending.done() and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait([ending], timeout=min(self.identity.refresh_s, left_s))
            if await self.request.is_disconnected() or not await is_still_authorized(self.identity, self.request):
                return False
        return True


async def _own_jobs(jobs: JobsDep, identity: IdentityDep, request: Request, principal: Principal) -> _OwnJobs:
    return _OwnJobs(jobs, identity, request, principal)


OwnJobs = Annotated[_OwnJobs, Depends(_own_jobs)]
router = APIRouter(
    prefix="/firstline/v1/answers", tags=["answers"], dependencies=[Depends(scope("infer")), Depends(known_parameters)]
)


@router.get("/{request_id}", openapi_extra={"parameters": [*VIEW, _WAIT], "responses": {"200": BINARY_ANSWER}})
async def fetch(own: OwnJobs, files: FilesDep, request: Request, request_id: str, form: Form = "short") -> Response:
    """The answer of a job (gateway; 202 while it waits or runs) or of a promise (agent). Only for its caller."""
    wait_s = _wait_s(request)
    if not wait_s:
        return response_of(_job_reply(files, await own.find(request_id), form, request))
    job = await own.wait_for(request_id, wait_s)
    reply = _job_reply(files, job, form, request)
    reply.headers["Preference-Applied"] = f"wait={wait_s}"
    return response_of(reply)


@router.get(
    "/{request_id}/events",
    response_class=StreamingResponse,
    openapi_extra={
        "parameters": [*VIEW, _LAST_EVENT_ID],
        "responses": {"200": {"content": {http.EVENT_STREAM_TYPE: TEXT}}, **NO_MORE_EVENTS},
    },
)
async def follow(own: OwnJobs, files: FilesDep, request: Request, request_id: str, form: Form = "short") -> Response:
    """The answer as server-sent events: a gateway sends one, an agent the present answer and then the final one."""
    last_event = http.last_event_id(request.headers)
    with ExitStack() as resources:
        ending = resources.enter_context(own.watch(request_id))
        job = await own.find(request_id)
        if last_event == http.LAST_ID:
            return Response(status_code=204)  # a browser's EventSource does not reconnect after it

        first = b"" if job.status == RUNNING else _event_data(files, job, form, request)

        async def pieces() -> AsyncIterator[bytes]:
            data = first
            while not data:
                yield http.HEARTBEAT  # the first one sends the head
                if not await own.wait_while_authorized(ending, HEARTBEAT_S):
                    return
                if ending.done():
                    try:
                        last = await own.find(request_id)
                        if last.status == RUNNING:  # this gateway stops
                            return
                        data = _event_data(files, last, form, request)
                    except FirstlineError:  # deleted, no store, or not in this form: a reconnecting client gets it
                        return
            yield http.event(http.LAST_ID, data)

        return _ResourceStream(pieces(), resources.pop_all())


@router.delete("/{request_id}")
async def forget(jobs: JobsDep, principal: Principal, request_id: str) -> Response:
    """Delete a job and its answer; a job that waits is not run."""
    await jobs.remove(request_id, principal)
    return json_response({"request_id": request_id, "deleted": True})


class _ResourceStream(StreamingResponse):
    """An event stream that releases its resources at the end."""

    def __init__(self, pieces: AsyncIterator[bytes], resources: ExitStack) -> None:
        super().__init__(pieces, headers=http.EVENT_HEADERS, media_type=http.EVENT_STREAM_TYPE)
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._resources:
            await super().__call__(scope, receive, send)


def _preferences(text: str) -> dict[str, str]:
    """Parses a Prefer header, by lower-case names; the first of a name counts (RFC 7240, section 2)."""
    found: dict[str, str] = {}
    for preference in text.split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


def _wait_s(request: Request) -> int:
    """Returns how long the caller waits; 0 without a valid preference."""
    value = _preferences(",".join(request.headers.getlist("prefer"))).get("wait", "")
    return min(int(value[:9]), WAIT_LIMIT_S) if value.isascii() and value.isdigit() else 0


def _job_reply(files: FileRoute, job: Job, form: str, request: Request) -> Reply:
    """Returns the reply that describes a job."""
    if job.status == RUNNING:
        reply = http.json_reply(_pending(job.job_id, job.model), 202)
        reply.headers["Retry-After"] = _COME_BACK_S
        return reply
    if job.status == 200 and form == "short":
        return _short_answer(files, job, request)
    return Reply(job.status, http.headers_for(Encoded(job.content, job.header)), job.content)


def _event_data(files: FileRoute, job: Job, form: str, request: Request) -> bytes:
    """Returns the answer of a job that has ended, as the data of an event.

    Raises:
        FirstlineError: the answer cannot be in this form.
    """
    if job.status != 200:
        return job.content
    if form == "short":
        return _short_answer(files, job, request).body
    response = decode_response(job.content, job.header)
    return encode_response(InferRequest(response.model, (), job.job_id), response).body


def _short_answer(files: FileRoute, job: Job, request: Request) -> Reply:
    response = decode_response(job.content, job.header)
    return files.json(response, query_parameters(request.scope["query_string"]))


def _pending(request_id: str, model: str) -> dict[str, object]:
    return {"request_id": request_id, "status": "pending", "durable": True, "model": model}
