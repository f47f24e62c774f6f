"""Jobs over HTTP: handed in with `Prefer: respond-async` (RFC 7240), fetched by the id that came back.

Who fetches asks now and then, waits a while (`Prefer: wait=SECONDS`), or takes the answer as a server-sent event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack

from fastapi import APIRouter, Depends, Request
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from firstline_core.errors import EngineUnavailableError, FirstlineError, RequestError, UnknownModelError
from firstline_core.ids import new_request_id
from firstline_core.protocol import events, file_inference, http
from firstline_core.protocol.framing import Encoded
from firstline_core.protocol.http import Reply
from firstline_core.protocol.oip import decode_response, encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.types import InferRequest
from firstline_gateway.api.asked import caller, gateway_of
from firstline_gateway.api.auth import authorize, still_let_in
from firstline_gateway.api.errors import response_of
from firstline_gateway.api.gateway import Gateway
from firstline_gateway.jobs.records import RUNNING, Job

WAIT_LIMIT_S = 60
"""No caller is kept waiting for one reply for longer: whatever stands between would give up."""
HEARTBEAT_S = 15.0

_PREFER = "respond-async"
_COME_BACK_S = "1"
_FORM = {
    "name": "form",
    "in": "query",
    "schema": {"enum": ["short", "v2"]},
    "description": "In words, or as tensors.",
}
_WAIT = {
    "name": "Prefer",
    "in": "header",
    "schema": {"type": "string", "pattern": "^wait=[0-9]+$"},
    "description": f"wait=SECONDS: how long to wait for the answer (RFC 7240), at most {WAIT_LIMIT_S}.",
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"enum": ["0", "1", "2"]},
    "description": "The id of the last event that was seen: after 2 nothing follows, 204.",
}


def is_asynchronous(headers: Mapping[str, str]) -> bool:
    """Whether the caller would rather not wait; `headers` by lowered names."""
    return _PREFER in _preferences(headers.get("prefer", ""))


async def submitted(gateway: Gateway, request: InferRequest) -> Reply:
    """Takes a job, once it is in the store.

    Raises:
        RequestError: it would be refused, whenever it was run.
        CapacityError: there is no room for it, or the store cannot be reached.
    """
    request = replace(request, request_id=new_request_id())  # a device's own may be an escalation's
    gateway.plane.check(request)
    await gateway.jobs.submit(request)
    reply = http.json_reply(_pending(request.request_id, request.model), 202)
    reply.headers["Location"] = f"/firstline/v1/answers/{request.request_id}"
    reply.headers["Preference-Applied"] = _PREFER
    return reply


router = APIRouter(prefix="/firstline/v1/answers", tags=["answers"], dependencies=[Depends(caller)])


@router.get(
    "/{request_id}",
    summary="What came of a job; 202 while it waits or runs. Readable by who handed it in.",
    openapi_extra={"parameters": [_FORM, _WAIT]},
)
async def fetch(request: Request, request_id: str) -> Response:
    gateway, form, wait_s = gateway_of(request), _form(request), _wait_s(request)
    if not wait_s:
        return response_of(_told(gateway, await gateway.jobs.find(request_id, request.state.principal), form))
    reply = _told(gateway, await _waited_for(gateway, request, request_id, wait_s), form)
    reply.headers["Preference-Applied"] = f"wait={wait_s}"
    return response_of(reply)


@router.get(
    "/{request_id}/events",
    summary="What came of a job, as a server-sent event when it has ended. Readable by who handed it in.",
    response_class=StreamingResponse,
    responses={200: {"content": {events.EVENT_STREAM_TYPE: {"schema": {"type": "string"}}}}},
    openapi_extra={"parameters": [_FORM, _LAST_EVENT_ID]},
)
async def follow(request: Request, request_id: str) -> Response:
    gateway, form, principal = gateway_of(request), _form(request), request.state.principal
    seen = events.last_event_id(request.headers)
    with ExitStack() as held:
        ending = held.enter_context(gateway.jobs.endings.watched(request_id, principal))
        job = await gateway.jobs.find(request_id, principal)
        if seen == events.LAST_ID:
            return Response(status_code=204)  # tells a browser's EventSource not to come back

        async def said() -> AsyncIterator[bytes]:
            last = job
            while last.status == RUNNING:
                yield events.HEARTBEAT  # the first has the head go out
                if not await _ended_while_let_in(gateway, request, ending, HEARTBEAT_S):
                    return
                if ending.done():
                    try:
                        last = await gateway.jobs.find(request_id, principal)
                    except FirstlineError:  # deleted meanwhile, or the store is away: whoever asks again is told
                        return
                    if last.status == RUNNING:  # this gateway ends
                        return
            yield events.event(events.LAST_ID, _in_json(gateway, last, form))

        return _Held(said(), held.pop_all())


async def _waited_for(gateway: Gateway, request: Request, job_id: str, wait_s: float) -> Job:
    """The caller's job once it has ended, or after so many seconds.

    Raises:
        UnauthorizedError: the caller is no more let in.
        QueueFullError: too many wait.
        FirstlineError: as `Jobs.find`.
    """
    principal = request.state.principal
    with gateway.jobs.endings.watched(job_id, principal) as ending:
        job = await gateway.jobs.find(job_id, principal)
        if job.status != RUNNING:
            return job
        if not await _ended_while_let_in(gateway, request, ending, wait_s):
            await authorize(gateway.identity, request, "infer")  # which says why not
    return await gateway.jobs.find(job_id, principal)


async def _ended_while_let_in(
    gateway: Gateway, request: Request, ending: asyncio.Future[None], within_s: float
) -> bool:
    """Waits for the end of a job, no longer than that; False where the caller is no more let in, or has left.

    Looks as often as revocations are taken over, so that who waits is refused when requests begin to be.
    """
    look_s = gateway.settings.auth.refresh_s
    until_s = asyncio.get_running_loop().time() + within_s
    while not ending.done() and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
        await asyncio.wait([ending], timeout=min(look_s, left_s))
        if await request.is_disconnected() or not await still_let_in(gateway.identity, request):
            return False
    return True


class _Held(StreamingResponse):
    """An event stream that gives back what it holds, however it ends."""

    def __init__(self, said: AsyncIterator[bytes], held: ExitStack) -> None:
        super().__init__(said, headers=events.EVENT_HEADERS, media_type=events.EVENT_STREAM_TYPE)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


@router.delete("/{request_id}", summary="Forget a job, and its answer; one that has not begun is not run.")
async def forget(request: Request, request_id: str) -> Response:
    await gateway_of(request).jobs.remove(request_id, request.state.principal)
    return response_of(http.json_reply({"request_id": request_id, "deleted": True}))


def _preferences(said: str) -> dict[str, str]:
    """What a Prefer header says, by lowered names; the first of a name counts (RFC 7240, section 2)."""
    found: dict[str, str] = {}
    for wish in said.split(","):
        name, _, value = wish.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


def _wait_s(request: Request) -> int:
    """How long the caller would wait; 0 where it does not say so in a way that is understood."""
    value = _preferences(",".join(request.headers.getlist("prefer"))).get("wait", "")
    return min(int(value[:9]), WAIT_LIMIT_S) if value.isascii() and value.isdigit() else 0


def _form(request: Request) -> str:
    form = request.query_params.get("form", "short")
    if form not in ("short", "v2"):
        raise RequestError(f"Query parameter 'form' is {shown(form)}; use short or v2.")
    return form


def _told(gateway: Gateway, job: Job, form: str) -> Reply:
    """What a caller is told of a job."""
    if job.status == RUNNING:
        reply = http.json_reply(_pending(job.job_id, job.model), 202)
        reply.headers["Retry-After"] = _COME_BACK_S
        return reply
    if job.status == 200 and form == "short":
        return http.json_reply(_in_words(gateway, job))
    return Reply(job.status, http.headers_for(Encoded(job.content, job.header)), job.content)


def _in_json(gateway: Gateway, job: Job, form: str) -> bytes:
    """The last word of a job that has ended, as the data of an event."""
    if job.status != 200:
        return job.content
    if form == "short":
        return http.json_reply(_in_words(gateway, job)).body
    response = decode_response(job.content, job.header)
    return encode_response(InferRequest(response.model, (), job.job_id), response).body


def _in_words(gateway: Gateway, job: Job) -> dict[str, object]:
    response = decode_response(job.content, job.header)
    try:
        labels = gateway.plane.metadata(response.model, response.version).labels
    except (UnknownModelError, EngineUnavailableError):  # unloaded since
        labels = ()
    return file_inference.answer_json(response, labels)


def _pending(request_id: str, model: str) -> dict[str, object]:
    return {"request_id": request_id, "status": "pending", "durable": True, "model": model}
