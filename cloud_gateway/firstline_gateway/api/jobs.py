"""Jobs over HTTP: submitted with `Prefer: respond-async` (RFC 7240), and fetched by the id in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from msgspec.structs import replace
from starlette.responses import Response

from firstline_core.file_route import FileRoute
from firstline_core.ids import new_request_id
from firstline_core.protocol import http
from firstline_core.protocol.asgi import query_parameters
from firstline_core.protocol.http import Reply
from firstline_core.protocol.oip import Encoded, decode_response
from firstline_core.protocol.openapi import BINARY_ANSWER, VIEW
from firstline_core.types import InferRequest
from firstline_gateway.api.auth import Access, Principal
from firstline_gateway.api.messages import json_response, response_of
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.jobs.records import RUNNING, Job
from firstline_gateway.serving.data_plane import GatewayDataPlane

_PREFER = "respond-async"
_COME_BACK_S = "1"
Form = Annotated[Literal["short", "v2"], Query(description="As short JSON, or as tensors.")]


def is_asynchronous(headers: Mapping[str, str]) -> bool:
    """Returns whether the caller asks for a job; `headers` have lower-case names."""
    preferences = headers.get("prefer", "").split(",")
    return any(each.partition(";")[0].strip().lower() == _PREFER for each in preferences)


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


def job_routes(jobs: Jobs, files: FileRoute, access: Access) -> APIRouter:
    """Returns the routes of jobs."""
    router = APIRouter(prefix="/firstline/v1/answers", tags=["answers"], dependencies=[Depends(access.scope("infer"))])

    @router.get("/{request_id}", openapi_extra={"parameters": [*VIEW], "responses": {"200": BINARY_ANSWER}})
    async def fetch(request: Request, principal: Principal, request_id: str, form: Form = "short") -> Response:
        """The answer of a job (gateway; 202 while it waits or runs) or of a promise (agent). Only for its caller."""
        return response_of(_job_reply(files, await jobs.find(request_id, principal), form, request))

    @router.delete("/{request_id}")
    async def forget(principal: Principal, request_id: str) -> Response:
        """Delete a job and its answer; a job that waits is not run."""
        await jobs.remove(request_id, principal)
        return json_response({"request_id": request_id, "deleted": True})

    return router


def _job_reply(files: FileRoute, job: Job, form: str, request: Request) -> Reply:
    """Returns the reply that describes a job."""
    if job.status == RUNNING:
        reply = http.json_reply(_pending(job.job_id, job.model), 202)
        reply.headers["Retry-After"] = _COME_BACK_S
        return reply
    if job.status == 200 and form == "short":
        response = decode_response(job.content, job.header)
        return files.json(response, query_parameters(request.scope["query_string"]))
    return Reply(job.status, http.headers_for(Encoded(job.content, job.header)), job.content)


def _pending(request_id: str, model: str) -> dict[str, object]:
    return {"request_id": request_id, "status": "pending", "durable": True, "model": model}
