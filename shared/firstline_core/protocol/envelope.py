"""Requests and answers as MQTT messages: the V2 body is the payload, and HTTP's headers are user properties.

| user property                   | on       |                                                                   |
|---------------------------------|----------|-------------------------------------------------------------------|
| inference-header-content-length | both     | bytes of JSON before the binary tensors; absent where all is JSON |
| model-version                   | request  | the bundle's version; absent for the current one                  |
| deadline-ms                     | request  | what is left of the deadline, never a time of day                 |
| status                          | answer   | "ok", or the code of an error                                     |
| traceparent, tracestate         | both     | W3C trace context, where there is one                             |

An error's payload is `{"error": sentence, "code": code}`, as over HTTP.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from firstline_core.errors import FirstlineError, InvalidTensorError, ProtocolError
from firstline_core.protocol.http_errors import error_body, error_from
from firstline_core.protocol.mqtt_messages import Message, Publication
from firstline_core.protocol.oip import (
    DEFAULT_LIMITS,
    Encoded,
    Limits,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from firstline_core.telemetry.trace import received
from firstline_core.types import TRACEPARENT, TRACESTATE, InferRequest, InferResponse, TraceContext

HEADER_LENGTH = "inference-header-content-length"
MODEL_VERSION = "model-version"
DEADLINE_MS = "deadline-ms"
STATUS = "status"

OK = "ok"

_EXPIRY_MAX_S = 0xFFFF_FFFF  # four bytes (MQTT 5, section 3.3.2.3.3)


def request_publication(
    request: InferRequest,
    *,
    topic: str,
    response_topic: str,
    correlation_data: bytes,
    now_s: float,
) -> Publication:
    """Returns a request to publish. Its expiry is the deadline in whole seconds, after which the broker may drop it.

    Args:
        request: its `binary_output` decides the form of the answer.
        topic: from `Topics.request`.
        response_topic: of the answer.
        correlation_data: assigns the answer to its request.
        now_s: on the clock of `request.deadline_s`.

    Raises:
        InvalidTensorError: an input that V2 cannot represent.
    """
    if request.deadline_s is not None:
        request = replace(request, deadline_s=min(request.deadline_s, now_s + _EXPIRY_MAX_S))
    encoded = encode_request(request, binary=True, now_s=now_s)
    properties = _properties(encoded, request.trace)
    expiry_s = None
    if request.version:
        properties[MODEL_VERSION] = request.version
    if request.deadline_s is not None:
        left_s = max(0.0, request.deadline_s - now_s)
        properties[DEADLINE_MS] = str(math.ceil(left_s * 1000))
        expiry_s = max(1, math.ceil(left_s))
    return Publication(
        topic=topic,
        payload=encoded.body,
        properties=properties,
        response_topic=response_topic,
        correlation_data=correlation_data,
        expiry_s=expiry_s,
    )


def trace_of(message: Message) -> TraceContext | None:
    """Returns the trace of a message; None without one."""
    return received(message.properties.get(TRACEPARENT, ""), message.properties.get(TRACESTATE, ""))


def read_request(
    message: Message,
    model: str,
    *,
    now_s: float,
    principal: str,
    limits: Limits = DEFAULT_LIMITS,
    trace: TraceContext | None = None,
) -> InferRequest:
    """Decodes the request of a message and keeps its `request_id`, because only authenticated devices publish these.

    The deadline is the earliest one in the message. The expiry includes the time at the broker, but only in whole
    seconds.

    Args:
        message: from a request topic.
        model: from that topic.
        now_s: on this tier's monotonic clock.
        principal: the device of the topic, authorised by the broker.
        limits: checked against the declared sizes.
        trace: of the request, from `trace_of`.

    Raises:
        RequestError: the message is invalid; `InvalidTensorError`, `PayloadTooLargeError`.
    """
    request = decode_request(
        model,
        message.payload,
        _whole_number(message, HEADER_LENGTH),
        version=message.properties.get(MODEL_VERSION, ""),
        now_s=now_s,
        principal=principal,
        trust_request_id=True,
        limits=limits,
    )
    deadline_ms = _whole_number(message, DEADLINE_MS)
    ends_s = [
        request.deadline_s,
        None if deadline_ms is None else now_s + deadline_ms / 1000,
        None if message.expiry_s is None else now_s + message.expiry_s,
    ]
    deadline_s = min((end_s for end_s in ends_s if end_s is not None), default=None)
    return replace(request, deadline_s=deadline_s, trace=trace)


def json_bytes(message: Message) -> int:
    """Returns the bytes of a payload that must be parsed as JSON, which blocks the thread.

    Raises:
        InvalidTensorError: the header length is invalid.
    """
    length = _whole_number(message, HEADER_LENGTH)
    return len(message.payload) if length is None else min(length, len(message.payload))


def response_publication(
    request: InferRequest,
    response: InferResponse,
    *,
    topic: str,
    correlation_data: bytes = b"",
    expiry_s: int | None = None,
) -> Publication:
    """Returns an answer to publish, never retained.

    Raises:
        InvalidTensorError: a requested output does not exist.
    """
    encoded = encode_response(request, response)
    properties = {STATUS: OK} | _properties(encoded, request.trace)
    return Publication(topic, encoded.body, properties, correlation_data=correlation_data, expiry_s=expiry_s)


def error_publication(
    error: FirstlineError,
    *,
    topic: str,
    correlation_data: bytes,
    expiry_s: int | None = None,
    trace: TraceContext | None = None,
) -> Publication:
    """Returns an error to publish, with the trace of the request."""
    properties = {STATUS: error.code} | ({} if trace is None else trace.headers())
    return Publication(topic, error_body(error), properties, correlation_data=correlation_data, expiry_s=expiry_s)


def read_response(message: Message, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    """Decodes the answer of a message.

    Raises:
        FirstlineError: the published error.
        ProtocolError: the message is not an answer or an error.
    """
    status = message.properties.get(STATUS)
    if status is None:
        raise ProtocolError(f"A message on '{message.topic}' has no user property '{STATUS}'.")
    if status != OK:
        error = error_from(500, message.payload)
        if error.code != status:
            raise ProtocolError(f"A message on '{message.topic}' has status '{status}', but its payload differs.")
        raise error
    try:
        header_length = _whole_number(message, HEADER_LENGTH)
    except InvalidTensorError as fault:
        raise ProtocolError(fault.message) from fault
    return decode_response(message.payload, header_length, limits)


def _properties(encoded: Encoded, trace: TraceContext | None) -> dict[str, str]:
    properties = {} if encoded.header_length is None else {HEADER_LENGTH: str(encoded.header_length)}
    return properties if trace is None else properties | trace.headers()


def _whole_number(message: Message, name: str) -> int | None:
    text = message.properties.get(name)
    if text is None:
        return None
    # 15 digits are enough for any body or time, and limit the work of int().
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidTensorError(f"The user property '{name}' is {text[:40]!r}; give a whole number.")
    return int(text)
