"""Open Inference Protocol V2: encodes and decodes requests and responses, for HTTP and MQTT. No I/O.

`decode_request` is the entry for requests: it reads the JSON header, the tensors, and the parameters.

A body is JSON alone, or (Triton's binary tensor extension) a JSON header followed by the raw bytes of those tensors
that have `binary_data_size`, in their order, up to the end of the body; the header's length travels separately.

    https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md

If JSON repeats a key, the last one counts (RFC 8259 leaves it open). A null counts as absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson
from msgspec import Struct

from firstline_core import errors
from firstline_core.ids import new_request_id
from firstline_core.protocol import answer as answers
from firstline_core.protocol import outputs, tensors
from firstline_core.protocol import parameters as params
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.trace import restored
from firstline_core.telemetry.wording import counted
from firstline_core.types import (
    DATATYPES,
    TRACEPARENT,
    TRACESTATE,
    Array,
    InferRequest,
    InferResponse,
    Privacy,
    RequestedOutput,
    Route,
    Tensor,
    TraceContext,
    Wait,
)

EDGE_OUTPUT: Final = "edge/"
"""Precedes the name of an edge output among the inputs of an audit."""


class Origin(Struct, frozen=True):
    """Where a request comes from, and when it came.

    Attributes:
        now_s: time of arrival on this tier's monotonic clock; `timeout` counts from here.
        principal: the caller that the transport authenticated.
        trust_request_id: keep the body's `request_id`, as the gateway does for escalations; otherwise, or without one,
            create a new one. Only these callers may send audits, alarms and promised corrections; those of others are
            ignored.
        limits: checked against the declared sizes before anything is allocated.
        trace: trace context in the headers; it takes precedence over one in the body.
    """

    now_s: float = 0.0
    principal: str = ""
    trust_request_id: bool = False
    limits: Limits = DEFAULT_LIMITS
    trace: TraceContext | None = None


UNKNOWN = Origin()
_NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


def decode_request(
    model: str, body: bytes, header_length: int | None, origin: Origin = UNKNOWN, *, version: str = ""
) -> InferRequest:
    """Decodes a request. Numeric binary inputs are read-only views of `body`.

    Args:
        model: the bundle's name, from the address or the topic; the one in the body is ignored.
        body: with any Content-Encoding undone.
        header_length: size of the JSON at its start (bytes); None means all.
        origin: of the request.
        version: the bundle's version, "" for the current one.

    Raises:
        InvalidTensorError: the body is not valid V2.
        RequestError: a parameter has an invalid value.
        PayloadTooLargeError: it exceeds the limits.
    """
    head, described, tail = read_request_head(body, header_length, origin.limits)
    return request_of(model, version, head, decode_tensors("inputs", described, tail), origin)


def request_of(model: str, version: str, head: RequestHead, inputs: tuple[Tensor, ...], origin: Origin) -> InferRequest:
    """Builds a request from its decoded header and tensors.

    Args:
        model: the bundle's name.
        version: version of the bundle; "" for the current one.
        head: see `request_head`.
        inputs: its tensors, with the edge outputs of an audit.
        origin: of the request.

    Raises:
        RequestError: see `decode_request`, or the edge outputs of an audit are alone or without its note.
    """
    parameters, trace = head.parameters, origin.trace
    trusted = parameters if origin.trust_request_id else _NO_PARAMETERS
    audit = params.read_note(trusted, inputs[0].shape[0]) if trusted else None
    edge_outputs: dict[str, Array] = {}
    for tensor in inputs:  # a loop, because a comprehension is a call before Python 3.12
        if tensor.name.startswith(EDGE_OUTPUT):
            edge_outputs[tensor.name.removeprefix(EDGE_OUTPUT)] = tensor.array
    if edge_outputs:
        inputs = tuple([tensor for tensor in inputs if not tensor.name.startswith(EDGE_OUTPUT)])
        if audit is None:
            raise errors.RequestError(
                f"The request has inputs '{EDGE_OUTPUT}...', the edge outputs of an audit, but it is no audit: only "
                "devices audit, and send the parameters of an audit too."
            )
        if not inputs:
            raise errors.InvalidTensorError("The request has the edge outputs of an audit, but no input of the model.")
    request_id = params.text(trusted, "request_id") if trusted else ""
    if trace is None and TRACEPARENT in trusted:
        trace = _stored_trace(trusted)
    return InferRequest(
        model=model,
        inputs=inputs,
        request_id=_uuid(request_id) if request_id else new_request_id(),
        version=version,
        id=head.id,
        outputs=head.outputs,
        binary_output=bool(parameters and params.flag(parameters, "binary_data_output")),
        full_model_digest=params.text(parameters, "full_model_digest") if parameters else "",
        principal=origin.principal,
        audit=audit,
        edge_outputs=edge_outputs,
        alarm=params.read_alarm(trusted) if trusted else None,
        # Without the device's own id a repeated request could not be recognised.
        promised=bool(request_id and params.flag(parameters, "promised")),
        trace=trace,
        **(params.preferences(parameters, origin.now_s) if parameters else {}),
    )


def encode_request(request: InferRequest, *, binary: bool = True, now_s: float = 0.0, traced: bool = False) -> Encoded:
    """Encodes the body for `decode_request`; `model`, `version` and `principal` travel separately.

    Args:
        request: its `binary_output` and `outputs` determine the form of the answer.
        binary: whether the inputs travel as raw bytes or as JSON.
        now_s: current time on the clock of `request.deadline_s`; the remaining time is sent.
        traced: whether to include the trace in the body, for stored requests; sent requests carry it in headers.

    Raises:
        InvalidTensorError: an input cannot be encoded in this form.
    """
    given: dict[str, str | float | bool] = {
        "request_id": request.request_id,
        "promised": request.promised,
        "full_model_digest": request.full_model_digest,
        "binary_data_output": request.binary_output,
        "priority": request.priority,
        "source": request.source,
    }
    parameters = {name: value for name, value in given.items() if value}
    if request.route is not Route.AUTO:
        parameters["route"] = request.route.value
    if request.privacy is not Privacy.ANY:
        parameters["privacy"] = request.privacy.value
    if request.wait is not Wait.FINAL:
        parameters["wait"] = request.wait.value
    if request.deadline_s is not None:
        parameters["timeout"] = params.timeout_us(request.deadline_s, now_s)
    if request.audit is not None:
        parameters |= params.note_parameters(request.audit)
    parameters |= params.alarm_parameters(request.alarm)
    parameters |= request.trace.headers() if traced and request.trace is not None else {}
    head: dict[str, Any] = {"id": request.id} if request.id else {}
    if parameters:
        head["parameters"] = parameters
    if request.outputs:
        head["outputs"] = [outputs.entry(output) for output in request.outputs]
    edge_outputs = [Tensor(EDGE_OUTPUT + name, array) for name, array in request.edge_outputs.items()]
    return assemble(head, "Input", "inputs", [(tensor, binary) for tensor in (*request.inputs, *edge_outputs)])


def decode_response(body: bytes, header_length: int | None, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    """Decodes a response; those of other servers have no `answer`.

    Raises:
        ProtocolError: the body is not valid V2, or exceeds `limits`. This is not a `RequestError`, because the caller
            cannot fix it.
    """
    try:
        values, tail = split(body, header_length, limits)
        listed = described_tensors("Output", "outputs", values.get("outputs"), limits)
        return InferResponse(
            model=params.text(values, "model_name"),
            version=params.text(values, "model_version"),
            outputs=decode_tensors("outputs", listed, tail),
            id=params.text(values, "id"),
            answer=answers.from_parameters(params.parameters_of(values, "The response")),
        )
    except errors.RequestError as error:
        raise errors.ProtocolError(f"The server's response cannot be read. {error.message}") from error


def encode_response(request: InferRequest, response: InferResponse, labels: Sequence[str] = ()) -> Encoded:
    """Encodes a response with the requested outputs, in the order and form of the request.

    Args:
        request: the answered request.
        response: the response to encode.
        labels: names of the model's classes, for outputs requested as classes.

    Raises:
        InvalidTensorError: a requested output does not exist, has no classes although they are requested, or has values
            that JSON cannot represent (not finite, or not UTF-8).
    """
    head: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        head["id"] = response.id
    if response.answer is not None:
        head["parameters"] = answers.to_parameters(response.answer)
    return assemble(head, "Output", "outputs", outputs.chosen(request, response, labels))


def check_rows(inputs: Sequence[DescribedTensor], limits: Limits) -> None:
    """Checks the first axis of all inputs, and the number of BYTES elements, before their data is read.

    Raises:
        InvalidTensorError: an input has no rows, or other rows than the first.
        PayloadTooLargeError: more rows, or BYTES elements of all inputs together, than `limits.rows`. A bundle takes
            one BYTES element a row, and each becomes an object.
    """
    first, byte_elements = inputs[0], 0
    for tensor in inputs:
        shape = tensor.shape
        if not shape or shape[0] == 0:
            raise errors.InvalidTensorError(
                f"Input {shown(tensor.name)} has shape {list(shape)}; the first axis counts rows, and must be at least "
                "1."
            )
        if shape[0] > limits.rows:
            raise errors.PayloadTooLargeError(
                f"Input {shown(tensor.name)} has {shape[0]} rows; at most {limits.rows} are accepted in one request."
            )
        byte_elements += math.prod(shape) if tensor.datatype == "BYTES" else 0
        if byte_elements > limits.rows:
            raise errors.PayloadTooLargeError(
                f"Input {shown(tensor.name)} has shape {list(shape)} of BYTES; at most {limits.rows} elements are "
                "accepted in one request."
            )
        if shape[0] != first.shape[0]:
            raise errors.InvalidTensorError(
                f"Input {shown(tensor.name)} has {counted(shape[0], 'row')}, but {shown(first.name)} has "
                f"{first.shape[0]:,}; all inputs share the first axis."
            )


def _stored_trace(parameters: Mapping[str, object]) -> TraceContext | None:
    """Returns the trace of a stored request; malformed values are ignored."""
    parent, state = parameters.get(TRACEPARENT), parameters.get(TRACESTATE)
    return restored(parent if isinstance(parent, str) else "", state if isinstance(state, str) else "")


def checked_id(value: str, limits: Limits) -> str:
    """Returns a caller's `id`, which is echoed and logged.

    Raises:
        PayloadTooLargeError: it is too long.
    """
    if len(value) > limits.id_chars:
        raise errors.PayloadTooLargeError(f"'id' is {len(value)} characters; at most {limits.id_chars} are accepted.")
    return value


def _uuid(request_id: str) -> str:
    try:
        canonical = str(UUID(request_id))
    except ValueError:
        canonical = ""
    if canonical != request_id.lower():
        raise errors.RequestError(
            f"Parameter 'request_id' is {shown(request_id)}; use a UUID such as "
            "01890a5d-ac96-774b-bcce-b302099a8057, or leave it out."
        )
    return canonical


# Written by some JSON encoders (such as Python's) for numbers that are not finite.
_NUMBER = re.compile(r"[-+.\dEe]+")
_NOT_JSON = re.compile(rb"\bNaN\b|\bInfinity\b")


# Small JSON headers that are remembered.
_REMEMBERED_BYTES, _REMEMBERED_HEADS = 1024, 256


class Encoded(NamedTuple):
    """A body; `header_length` is the size of its JSON header, None if the whole body is JSON."""

    body: bytes
    header_length: int | None


def parse_json(text: bytes | memoryview, limits: Limits, wanted: str = "JSON") -> Any:
    """Parses JSON of limited size; orjson limits its depth.

    Args:
        text: in UTF-8.
        limits: of size.
        wanted: what to send instead, for the error.

    Raises:
        PayloadTooLargeError: more than `limits.json_bytes`.
        InvalidTensorError: not JSON.
    """
    if len(text) > limits.json_bytes:
        raise errors.PayloadTooLargeError(
            f"The JSON is {len(text)} bytes; at most {limits.json_bytes} are accepted. Send tensors as binary data."
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("number is infinity"):
            number = _NUMBER.match(error.doc, error.pos)
            raise errors.InvalidTensorError(
                f"The number {number[0][:40] if number else 'there'} (line {error.lineno}, column {error.colno}) is "
                "too large; scale the values to the range of the input's datatype."
            ) from error
        hint = " JSON has no NaN and no Infinity: write finite numbers." * bool(_NOT_JSON.search(text))
        why = f"{error.msg.partition(',')[0]} (line {error.lineno}, column {error.colno})" if text else "it is empty"
        why = "it is binary data" if "not valid UTF-8" in why else why
        hint = hint or f" Send {wanted}."
        raise errors.InvalidTensorError(f"The body is not valid JSON: {why}.{hint}") from error


def split(body: bytes, header_length: int | None, limits: Limits) -> tuple[dict[str, Any], memoryview | None]:
    """Returns the JSON header and the bytes after it; None without a header length.

    Raises:
        InvalidTensorError: the header is not a JSON object of that length.
        PayloadTooLargeError: the body or its header are over `limits`.
    """
    limits.check_body(len(body))
    view = memoryview(body)
    if header_length is not None and not 0 < header_length <= len(body):
        raise errors.InvalidTensorError(
            f"Inference-Header-Content-Length is {header_length}, but the body has {len(body)} bytes; give the number "
            "of bytes of the JSON at the body's start."
        )
    head = parse_json(view[:header_length], limits, "a JSON object with 'inputs'")
    if not isinstance(head, dict):
        raise errors.InvalidTensorError(f"The body's JSON is {shown(head)}; send a JSON object with 'inputs'.")
    return head, None if header_length is None else view[header_length:]


class RequestHead(NamedTuple):
    """The header of a request without its tensors; must not be changed.

    Attributes:
        id: of the client, only echoed.
        outputs: requested ones; () for the server's choice.
        parameters: of the request.
    """

    id: str
    outputs: tuple[RequestedOutput, ...]
    parameters: dict[str, Any]


def request_head(values: dict[str, Any], limits: Limits) -> RequestHead:
    """Reads `id`, `outputs` and `parameters` as they are in JSON.

    Raises:
        RequestError: they are not valid V2.
        PayloadTooLargeError: they exceed `limits`.
    """
    parameters = params.parameters_of(values, "The request")
    return RequestHead(checked_id(params.text(values, "id"), limits), outputs.requested(values, limits), parameters)


# The limits with which each was checked, what it says, and its tensors.
_heads: dict[bytes, tuple[Limits, RequestHead, tuple[DescribedTensor, ...]]] = {}


def read_request_head(
    body: bytes, header_length: int | None, limits: Limits
) -> tuple[RequestHead, tuple[DescribedTensor, ...], memoryview | None]:
    """Returns the header of a request, the tensors that it lists, and the bytes after it.

    Clients send the same small header with every tensor of one model, so the latest ones without data are remembered.
    """
    key = None
    if header_length is not None and 0 < header_length <= min(len(body), _REMEMBERED_BYTES):
        limits.check_body(len(body))
        key = body[:header_length]
        found = _heads.get(key)
        if found is not None and found[0] is limits:
            return found[1], found[2], memoryview(body)[header_length:]
    values, tail = split(body, header_length, limits)
    described = tuple(described_tensors("Input", "inputs", values.get("inputs"), limits))
    check_rows(described, limits)
    head = request_head(values, limits)
    if key is not None and all("data" not in each.entry for each in described):
        if len(_heads) >= _REMEMBERED_HEADS:
            _heads.clear()
        _heads[key] = limits, head, described
    return head, described, tail


def assemble(head: dict[str, Any], kind: str, key: str, entries: list[tuple[Tensor, bool]]) -> Encoded:
    """Returns the body of `head` with the tensors of `entries` added under `key`.

    Args:
        head: the header without the tensors.
        kind: "Input" or "Output", for messages.
        key: "inputs" or "outputs".
        entries: each tensor, and whether it travels as raw bytes.

    Raises:
        InvalidTensorError: a tensor cannot be encoded in this form.
    """
    described: list[dict[str, Any]] = []
    blobs: list[memoryview] = []
    for tensor, binary in entries:
        array = tensor.array
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": array.shape}
        if binary:
            blob = tensors.to_binary(kind, tensor)
            entry["parameters"] = {"binary_data_size": blob.nbytes}
            blobs.append(blob)
        else:
            entry["data"] = tensors.to_json(kind, tensor)
        described.append(entry)
    head[key] = described
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if not blobs:
        return Encoded(text, None)
    # JSON may end in spaces. They align the first tensor to 8 bytes, so that it is read without a copy.
    text += b" " * (-len(text) % 8)
    return Encoded(b"".join([text, *blobs]), len(text))


def decode_tensors(key: str, listed: Iterable[DescribedTensor], tail: memoryview | None) -> tuple[Tensor, ...]:
    """Decodes tensors from JSON or from `tail`, up to its end.

    Args:
        key: "inputs" or "outputs", for messages.
        listed: descriptions of the tensors in the header.
        tail: the bytes after the header.

    Raises:
        InvalidTensorError: an entry, or the bytes after the header, are not valid V2.
    """
    decoded: list[Tensor] = []
    offset = 0
    for described in listed:
        where, datatype, shape, size = described.where, described.datatype, described.shape, described.binary_size
        if size is not None:
            array = tensors.from_binary(where, datatype, shape, _binary_data(described, size, tail, offset))
            offset += size
        elif (data := described.entry.get("data")) is not None:
            array = tensors.from_json(where, datatype, shape, data)
        else:
            raise errors.InvalidTensorError(f"{where} has neither 'data' nor 'binary_data_size'; give one of them.")
        decoded.append(Tensor(described.name, array))
    if tail is not None and offset != len(tail):
        raise errors.InvalidTensorError(
            f"The body has {counted(len(tail) - offset, 'byte')} after the last binary tensor; the 'binary_data_size' "
            f"of all {key} must add up to the {len(tail)} bytes after the JSON header."
        )
    return tuple(decoded)


class DescribedTensor(Struct, frozen=True):
    """The description of a tensor without its data.

    Args:
        where: its name in error messages.
        name: its name.
        datatype: a key of `DATATYPES`.
        shape: sizes of its axes.
        binary_size: `binary_data_size`; None if its data are not binary.
        entry: as received.
    """

    where: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    binary_size: int | None
    entry: dict[str, Any]


def described_tensors(kind: str, key: str, entries: object, limits: Limits) -> Iterator[DescribedTensor]:
    """Yields the tensors that a message lists; each is checked against the limits before its data is read.

    Args:
        kind: "Input" or "Output", for messages.
        key: "inputs" or "outputs", for messages.
        entries: objects with `name`, `datatype` and `shape`.
        limits: limits of all tensors together.

    Raises:
        InvalidTensorError: an entry is not valid V2.
        PayloadTooLargeError: a declared size is over `limits`.
    """
    if not isinstance(entries, list) or not entries:
        description = "missing" if entries is None else shown(entries)
        raise errors.InvalidTensorError(f"'{key}' is {description}; give an array of at least one tensor.")
    if len(entries) > limits.tensors:
        raise errors.PayloadTooLargeError(f"'{key}' has {len(entries)} tensors; at most {limits.tensors} are accepted.")
    names: set[str] = set()
    elements = byte_elements = 0
    for position, entry in enumerate(entries):
        name = params.name_of(entry, f"{kind} {position}")
        where = f"{kind} {shown(name)}"
        if name in names:
            raise errors.InvalidTensorError(f"{where} appears twice; remove one of them.")
        names.add(name)
        datatype = entry.get("datatype")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            raise errors.InvalidTensorError(
                f"{where} has datatype {shown(datatype)}{errors.listed(datatype, DATATYPES)}"
            )
        shape = tensors.parse_shape(where, entry.get("shape"), limits)
        elements += math.prod(shape)
        byte_elements += math.prod(shape) if datatype == "BYTES" else 0
        if elements > limits.elements or byte_elements > limits.byte_elements:
            raise errors.PayloadTooLargeError(
                f"{where} brings the message over {limits.elements} elements, or over "
                f"{limits.byte_elements} of BYTES; send fewer rows at a time."
            )
        yield DescribedTensor(where, name, datatype, shape, _binary_size(where, entry), entry)


def _binary_size(where: str, entry: dict[str, Any]) -> int | None:
    parameters = params.parameters_of_tensor(entry, where, "remove this parameter, and send the data in the body")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise errors.InvalidTensorError(f"{where} has 'binary_data_size' {shown(size)}; give a number of bytes.")
    if entry.get("data") is not None:
        raise errors.InvalidTensorError(f"{where} has both 'data' and 'binary_data_size'; give only one of them.")
    return size


def _binary_data(described: DescribedTensor, size: int, tail: memoryview | None, offset: int) -> memoryview:
    """Returns the bytes of a tensor that begin at `offset`."""
    where = described.where
    if tail is None:
        raise errors.InvalidTensorError(
            f"{where} has 'binary_data_size', but the length of the JSON header did not come with the body; "
            "send it as Inference-Header-Content-Length."
        )
    if size > len(tail) - offset:
        raise errors.InvalidTensorError(
            f"{where} has 'binary_data_size' {size}, but {len(tail) - offset} bytes are left in the body; "
            "send all of it, or correct the size."
        )
    return tail[offset : offset + size]
