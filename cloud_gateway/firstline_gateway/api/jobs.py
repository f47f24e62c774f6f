"""Jobs over HTTP: handed in with `Prefer: respond-async` (RFC 7240), fetched by the id that came back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer
from msgspec.structs import replace
from starlette.responses import Response

from firstline_core.errors import RequestError, UnknownModelError
from firstline_core.ids import new_request_id
from firstline_core.protocol import http, short
from firstline_core.protocol.framing import Encoded
from firstline_core.protocol.http import Reply
from firstline_core.protocol.oip import decode_response
from firstline_core.protocol.tensors import shown
from firstline_core.types import InferRequest
from firstline_gateway.api.auth import authorize
from firstline_gateway.api.control import gateway_of
from firstline_gateway.api.errors import response_of
from firstline_gateway.gateway import Gateway
from firstline_gateway.jobs.records import RUNNING, Job

_PREFER = "respond-async"
_COME_BACK_S = "1"


def is_asynchronous(headers: Mapping[str, str]) -> bool:
    """Whether the caller would rather not wait; `headers` by lowered names."""
    wishes = headers.get("prefer", "").split(",")
    return any(wish.partition(";")[0].strip().lower() == _PREFER for wish in wishes)


async def submitted(gateway: Gateway, request: InferRequest) -> Reply:
    """Takes a job, once it is in the store.

    Raises:
        RequestError: it would be refused, whenever it was run.
        CapacityError: there is no room for it, or the store cannot be reached.
    """
    request = replace(request, request_id=new_request_id())  # a device's own may be an escalation's
    gateway.plane.check(request)
    await gateway.jobs.submit(request)
    gateway.metrics.job("submitted")
    reply = http.json_reply(_pending(request.request_id, request.model), 202)
    reply.headers["Location"] = f"/firstline/v1/answers/{request.request_id}"
    reply.headers["Preference-Applied"] = _PREFER
    return reply


async def _caller(
    request: Request, _documented: Annotated[object, Depends(HTTPBearer(auto_error=False, description="An API key."))]
) -> None:
    caller = await authorize(gateway_of(request).identity, request, "infer")
    request.state.principal = caller.principal


router = APIRouter(prefix="/firstline/v1/answers", tags=["answers"], dependencies=[Depends(_caller)])


@router.get(
    "/{request_id}",
    summary="What came of a job; 202 while it waits or runs. Readable by who handed it in.",
    openapi_extra={
        "parameters": [
            {
                "name": "form",
                "in": "query",
                "schema": {"enum": ["short", "v2"]},
                "description": "In words, or as tensors.",
            }
        ]
    },
)
async def fetch(request: Request, request_id: str) -> Response:
    gateway = gateway_of(request)
    form = request.query_params.get("form", "short")
    if form not in ("short", "v2"):
        raise RequestError(f"Query parameter 'form' is {shown(form)}; use short or v2.")
    job = await gateway.jobs.find(request_id, request.state.principal)
    if job.status == RUNNING:
        reply = http.json_reply(_pending(job.job_id, job.model), 202)
        reply.headers["Retry-After"] = _COME_BACK_S
        return response_of(reply)
    encoded = Encoded(job.content, job.header)
    if job.status == 200 and form == "short":
        return response_of(_in_words(gateway, job))
    return response_of(Reply(job.status, http.headers_for(encoded), job.content))


@router.delete("/{request_id}", summary="Forget a job, and its answer; one that has not begun is not run.")
async def forget(request: Request, request_id: str) -> Response:
    await gateway_of(request).jobs.remove(request_id, request.state.principal)
    return response_of(http.json_reply({"request_id": request_id, "deleted": True}))


def _in_words(gateway: Gateway, job: Job) -> Reply:
    response = decode_response(job.content, job.header)
    try:
        labels = gateway.plane.metadata(response.model, response.version).labels
    except UnknownModelError:  # unloaded since
        labels = ()
    return http.json_reply(short.reply_from(response, labels))


def _pending(request_id: str, model: str) -> dict[str, object]:
    return {"request_id": request_id, "status": "pending", "durable": True, "model": model}
