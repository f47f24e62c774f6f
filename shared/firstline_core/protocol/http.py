"""What V2 over HTTP is, without a framework: header names, and every reply as a plain value.

Both tiers implement `data_plane.DataPlane`; their web frameworks only carry `Reply` values to and fro. Bodies suit
tritonclient, which looks at the status alone, and KServe's client, which reads the JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, UnknownModelError
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.http_body import HEADER_LENGTH, body_form, decoded_body, elsewhere, is_soon_read
from firstline_core.protocol.http_errors import RETRY_AFTER, error_body, status_of
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Encoded, decode_request, encode_response
from firstline_core.types import InferRequest, InferResponse, TensorSpec, TraceContext

CONTENT_TYPE = "Content-Type"
JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"


@dataclass(slots=True)
class Reply:
    """An HTTP response, before any framework has seen it."""

    status: int
    headers: dict[str, str]
    body: bytes


def error_reply(error: FirstlineError) -> Reply:
    """The error as both clients and programs read it."""
    status = status_of(error)
    headers = {CONTENT_TYPE: JSON_TYPE}
    if error.retry_after_s is not None:
        headers[RETRY_AFTER] = str(max(1, math.ceil(error.retry_after_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Reply(status, headers, error_body(error))


def headers_for(encoded: Encoded) -> dict[str, str]:
    """The headers that tell a reader what a body is."""
    if encoded.header_length is None:
        return {CONTENT_TYPE: JSON_TYPE}
    return {CONTENT_TYPE: BINARY_TYPE, HEADER_LENGTH: str(encoded.header_length)}


async def read_infer_request(
    model: str,
    version: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    arrived_s: float,
    principal: str = "",
    trust_request_id: bool = False,
    limits: Limits,
    trace: TraceContext | None = None,
) -> InferRequest:
    """Reads the request of a V2 body; a large one in a thread.

    Args:
        model: from the path, unquoted.
        version: from the path, "" for the current one.
        headers: of the request.
        body: of the request, as it came.
        arrived_s: when the request arrived; its `timeout` counts from there.
        principal: the caller, as the adapter authenticated it.
        trust_request_id: for devices, whose escalations keep their id.
        limits: of the tier.
        trace: that the request belongs to.

    Raises:
        RequestError: the request cannot be read.
    """
    form = body_form(headers)

    def read() -> InferRequest:
        return decode_request(
            model,
            body if form.encoding is None else decoded_body({"content-encoding": form.encoding}, body, limits),
            form.header_length,
            version=version,
            now_s=arrived_s,
            principal=principal,
            trust_request_id=trust_request_id,
            limits=limits,
            trace=trace,
        )

    return read() if is_soon_read(form, len(body)) else await elsewhere(read)


def response_reply(plane: DataPlane, request: InferRequest, response: InferResponse) -> Reply:
    """What a request is answered with.

    Raises:
        InvalidTensorError: the response cannot travel as the request asks.
    """
    encoded = encode_response(request, response, class_labels(plane, request, response) if request.outputs else ())
    return Reply(200, headers_for(encoded), encoded.body)


async def infer_reply(
    plane: DataPlane,
    model: str,
    version: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    principal: str = "",
    trust_request_id: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    arrived_s: float | None = None,
    trace: TraceContext | None = None,
) -> Reply:
    """`POST /v2/models/{model}[/versions/{version}]/infer`.

    Args:
        plane: the tier that answers.
        model: from the path, unquoted.
        version: from the path, "" for the current one.
        headers: of the request.
        body: of the request, as it came.
        principal: who asks, as the adapter authenticated them.
        trust_request_id: for devices, whose escalations keep their id.
        clock: `timeout` counts from its present,
        arrived_s: or from when the head arrived: a body that took its time has used some of it up.
        trace: that the request belongs to.

    Raises:
        FirstlineError: why there is no answer; `error_reply` says it.
    """
    request = await read_infer_request(
        *(model, version, headers, body),
        arrived_s=clock.monotonic_s() if arrived_s is None else arrived_s,
        principal=principal,
        trust_request_id=trust_request_id,
        limits=plane.limits,
        trace=trace,
    )
    return response_reply(plane, request, await plane.infer(request))


def class_labels(plane: DataPlane, request: InferRequest, response: InferResponse) -> tuple[str, ...]:
    """The labels of the model that answered, where an output is wanted as classes; () where they are not known."""
    for output in request.outputs:
        if output.classification:
            break
    else:
        return ()
    try:
        return plane.metadata(response.model, response.version).labels
    except UnknownModelError:  # another tier's
        return ()


def server_metadata_reply(plane: DataPlane) -> Reply:
    """`GET /v2`."""
    return json_reply({"name": plane.server_name, "version": plane.server_version, "extensions": plane.extensions})


def live_reply(plane: DataPlane) -> Reply:
    """`GET /v2/health/live`."""
    live = plane.live()
    return json_reply({"live": live}, 200 if live else 400)


def ready_reply(plane: DataPlane) -> Reply:
    """`GET /v2/health/ready`; V2 wants a 4xx while it is not."""
    ready = plane.ready()
    return json_reply({"ready": ready}, 200 if ready else 400)


def model_ready_reply(plane: DataPlane, model: str, version: str) -> Reply:
    """`GET /v2/models/{model}[/versions/{version}]/ready`."""
    try:
        ready = plane.model_ready(model, version)
    except FirstlineError as error:
        return error_reply(error)
    return json_reply({"name": model, "ready": ready}, 200 if ready else 400)


def model_metadata_reply(plane: DataPlane, model: str, version: str) -> Reply:
    """`GET /v2/models/{model}[/versions/{version}]`; `labels` is Firstline's own, there for classifiers."""
    try:
        metadata = plane.metadata(model, version)
    except FirstlineError as error:
        return error_reply(error)
    described: dict[str, Any] = {
        "name": metadata.name,
        "versions": metadata.versions,
        "platform": metadata.platform,
        "inputs": [_spec(spec) for spec in metadata.inputs],
        "outputs": [_spec(spec) for spec in metadata.outputs],
    }
    if metadata.labels:
        described["labels"] = metadata.labels
    return json_reply(described)


def json_reply(value: object, status: int = 200) -> Reply:
    """Any JSON value as a reply."""
    return Reply(status, {CONTENT_TYPE: JSON_TYPE}, orjson.dumps(value))


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}
