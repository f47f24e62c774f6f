"""Open Inference Protocol V2: encodes and decodes requests and responses, for HTTP and MQTT. No I/O.

A body is JSON alone, or (Triton's binary tensor extension) a JSON header followed by the raw bytes of those tensors
that carry `binary_data_size`, in their order; the header's length travels separately.

    https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md

If JSON repeats a key, the last one counts (RFC 8259 leaves it open). A null counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from firstline_core.errors import (
    InvalidTensorError,
    PayloadTooLargeError,
    ProtocolError,
    RequestError,
)
from firstline_core.ids import new_request_id
from firstline_core.protocol import answer as answers
from firstline_core.protocol import contract, framing, outputs
from firstline_core.protocol import parameters as params
from firstline_core.protocol.framing import Encoded
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.trace import restored
from firstline_core.types import (
    TRACEPARENT,
    TRACESTATE,
    InferRequest,
    InferResponse,
    Privacy,
    Route,
    Tensor,
    TraceContext,
    Wait,
)

__all__ = [
    "DEFAULT_LIMITS",
    "Encoded",
    "Limits",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]


def decode_request(
    model: str,
    body: bytes,
    header_length: int | None,
    *,
    version: str = "",
    now_s: float = 0.0,
    principal: str = "",
    trust_request_id: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    trace: TraceContext | None = None,
) -> InferRequest:
    """Decodes a request. Numeric binary inputs are read-only views of `body`.

    Args:
        model: the bundle's name, from the address or the topic; the one in the body is ignored.
        body: with any Content-Encoding undone.
        header_length: bytes of JSON at its start; None means all.
        version: the bundle's version, "" for the current one.
        now_s: on this tier's monotonic clock; `timeout` counts from here.
        principal: the caller that the transport authenticated.
        trust_request_id: keep the body's `request_id`, as the gateway does for escalations; otherwise, or without one,
            create a new one. Only these callers may send audits, alarms and promised corrections; those of others are
            ignored.
        limits: checked against the declared sizes before anything is allocated.
        trace: that the request belongs to by its headers; it takes precedence over one in the body.

    Raises:
        InvalidTensorError: the body is not valid V2.
        RequestError: a parameter has an invalid value.
        PayloadTooLargeError: it exceeds `limits`.
    """
    head, tail = framing.read_head("Input", "inputs", body, header_length, limits)
    return request_of(
        model,
        head.values,
        framing.decode_tensors("inputs", head.tensors, tail),
        version=version,
        now_s=now_s,
        principal=principal,
        trust_request_id=trust_request_id,
        limits=limits,
        trace=trace,
    )


def request_of(
    model: str,
    head: dict[str, Any],
    inputs: tuple[Tensor, ...],
    *,
    version: str,
    now_s: float,
    principal: str,
    trust_request_id: bool,
    limits: Limits,
    trace: TraceContext | None = None,
) -> InferRequest:
    """Builds a request from its decoded header and tensors.

    Args:
        model: the bundle's name.
        head: `id`, `parameters` and `outputs` as in JSON.
        inputs: its tensors.
        version: of the bundle; "" for the current one.
        now_s: on this tier's monotonic clock.
        principal: the caller.
        trust_request_id: see `decode_request`.
        limits: for rows, outputs and the id.
        trace: see `decode_request`.

    Raises:
        RequestError: as `decode_request`.
    """
    _check_rows(inputs, limits)
    parameters = framing.object_at(head, "parameters", "The request")
    wishes = params.preferences(parameters, now_s)
    request_id = params.text(parameters, "request_id") if trust_request_id else ""
    if trace is None and trust_request_id and TRACEPARENT in parameters:
        trace = _kept_trace(parameters)
    return InferRequest(
        model=model,
        inputs=inputs,
        request_id=_uuid(request_id) if request_id else new_request_id(),
        version=version,
        id=_echoed_id(head, limits),
        outputs=outputs.requested(head, limits),
        binary_output=params.flag(parameters, "binary_data_output") or False,
        route=wishes.route,
        privacy=wishes.privacy,
        wait=wishes.wait,
        deadline_s=wishes.deadline_s,
        priority=wishes.priority,
        full_model_digest=params.text(parameters, "full_model_digest"),
        principal=principal,
        audit=contract.read_note(parameters, inputs[0].shape[0]) if trust_request_id else None,
        alarm=contract.read_alarm(parameters) if trust_request_id else "",
        # Without the device's own id a repeated request could not be recognised.
        promised=bool(request_id) and bool(params.flag(parameters, "promised")),
        trace=trace,
    )


def encode_request(request: InferRequest, *, binary: bool = True, now_s: float = 0.0, traced: bool = False) -> Encoded:
    """Encodes the body for `decode_request`; `model`, `version` and `principal` travel separately.

    Args:
        request: its `binary_output` and `outputs` determine the form of the answer.
        binary: whether the inputs travel as raw bytes or as JSON.
        now_s: on the clock of `request.deadline_s`; the remaining time is sent.
        traced: whether to include the trace in the body, for stored requests; sent requests carry it in headers.

    Raises:
        InvalidTensorError: an input cannot be encoded in this form.
    """
    parameters: dict[str, str | float | bool] = {}
    if request.request_id:
        parameters["request_id"] = request.request_id
    if request.promised:
        parameters["promised"] = True
    if request.full_model_digest:
        parameters["full_model_digest"] = request.full_model_digest
    if request.binary_output:
        parameters["binary_data_output"] = True
    if request.route is not Route.AUTO:
        parameters["route"] = request.route.value
    if request.privacy is not Privacy.ANY:
        parameters["privacy"] = request.privacy.value
    if request.wait is not Wait.FINAL:
        parameters["wait"] = request.wait.value
    if request.deadline_s is not None:
        parameters["timeout"] = params.timeout_us(request.deadline_s, now_s)
    if request.priority:
        parameters["priority"] = request.priority
    if request.audit is not None:
        parameters |= contract.note_parameters(request.audit)
    parameters |= contract.alarm_parameters(request.alarm)
    parameters |= request.trace.headers() if traced and request.trace is not None else {}
    head: dict[str, Any] = {"id": request.id} if request.id else {}
    if parameters:
        head["parameters"] = parameters
    if request.outputs:
        head["outputs"] = [outputs.entry(output) for output in request.outputs]
    return framing.assemble(head, "Input", "inputs", [(tensor, binary) for tensor in request.inputs])


def decode_response(body: bytes, header_length: int | None, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    """Decodes a response; `answer` is None if the server is not Firstline.

    Raises:
        ProtocolError: the body is not valid V2, or exceeds `limits`. This is not a `RequestError`, because the caller
            cannot fix it.
    """
    try:
        values, tail = framing.split(body, header_length, limits)
        listed = framing.described_tensors("Output", "outputs", values.get("outputs"), limits)
        return InferResponse(
            model=params.text(values, "model_name"),
            version=params.text(values, "model_version"),
            outputs=framing.decode_tensors("outputs", listed, tail),
            id=params.text(values, "id"),
            answer=answers.from_parameters(framing.object_at(values, "parameters", "The response")),
        )
    except RequestError as error:
        raise ProtocolError(f"The server's response cannot be read. {error.message}") from error


def encode_response(request: InferRequest, response: InferResponse, labels: Sequence[str] = ()) -> Encoded:
    """Encodes a response with the requested outputs, in the order and form of the request.

    Args:
        request: of the response.
        response: to encode.
        labels: of the model's classes, for outputs requested as classes.

    Raises:
        InvalidTensorError: a requested output does not exist, has no classes although they are requested, or has values
            that JSON cannot represent (not finite, or not UTF-8).
    """
    head: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        head["id"] = response.id
    if response.answer is not None:
        head["parameters"] = answers.to_parameters(response.answer)
    return framing.assemble(head, "Output", "outputs", outputs.chosen(request, response, labels))


def _check_rows(inputs: tuple[Tensor, ...], limits: Limits) -> None:
    first = inputs[0]
    for tensor in inputs:
        shape = tensor.shape
        if not shape or shape[0] == 0:
            raise InvalidTensorError(
                f"Input {shown(tensor.name)} has shape {list(shape)}; the first axis counts rows, and must be at least "
                "1."
            )
        if shape[0] > limits.rows:
            raise PayloadTooLargeError(
                f"Input {shown(tensor.name)} has {shape[0]} rows; at most {limits.rows} are accepted in one request."
            )
        if shape[0] != first.shape[0]:
            raise InvalidTensorError(
                f"Input {shown(tensor.name)} has {shape[0]} rows, but {shown(first.name)} has {first.shape[0]}; all "
                "inputs share the first axis."
            )


def _kept_trace(parameters: Mapping[str, object]) -> TraceContext | None:
    """Returns the trace of a stored request; malformed values are ignored."""
    parent, state = parameters.get(TRACEPARENT), parameters.get(TRACESTATE)
    return restored(parent if isinstance(parent, str) else "", state if isinstance(state, str) else "")


def _echoed_id(head: dict[str, Any], limits: Limits) -> str:
    value = params.text(head, "id")
    if len(value) > limits.id_chars:
        raise PayloadTooLargeError(f"'id' is {len(value)} characters; at most {limits.id_chars} are accepted.")
    return value


def _uuid(request_id: str) -> str:
    try:
        canonical = str(UUID(request_id))
    except ValueError:
        canonical = ""
    if canonical != request_id.lower():
        raise RequestError(
            f"Parameter 'request_id' is {shown(request_id)}; use a UUID such as "
            "01890a5d-ac96-774b-bcce-b302099a8057, or leave it out."
        )
    return canonical
