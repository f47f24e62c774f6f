"""What V2 over HTTP is, without a framework: header names, and every reply as a plain value.

Both tiers implement `data_plane.DataPlane`; their web frameworks only carry `Reply` values to and fro. Bodies suit
tritonclient, which looks at the status alone, and KServe's client, which reads the JSON.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, InvalidTensorError, PayloadTooLargeError, UnknownModelError
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.http_errors import RETRY_AFTER, Lowered, error_body, header, status_of
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Encoded, decode_request, encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.types import InferRequest, InferResponse, TensorSpec

HEADER_LENGTH = "Inference-Header-Content-Length"
CONTENT_TYPE = "Content-Type"
JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"

# Some milliseconds of parsing, which one request may take from all others; more goes to a thread.
_INLINE_JSON_BYTES = 256 * 1024

# One thread: parsing holds the interpreter's lock, so several would not be faster, and each would have its turn
# before the event loop has.
_DECODING = ThreadPoolExecutor(1, thread_name_prefix="decoding")

T = TypeVar("T")


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


def header_length(headers: Mapping[str, str]) -> int | None:
    """Bytes of JSON at the start of the body; None where the header is absent, so that all of it is JSON.

    Raises:
        InvalidTensorError: the header is not a whole number.
    """
    value = header(headers, HEADER_LENGTH)
    if value is None:
        return None
    # 18 digits are more than any body, and keep int() from work without end.
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidTensorError(f"{HEADER_LENGTH} is {shown(value)}; give the number of bytes of the JSON header.")
    return int(value)


def headers_for(encoded: Encoded) -> dict[str, str]:
    """The headers that tell a reader what a body is."""
    if encoded.header_length is None:
        return {CONTENT_TYPE: JSON_TYPE}
    return {CONTENT_TYPE: BINARY_TYPE, HEADER_LENGTH: str(encoded.header_length)}


async def within(chunks: AsyncIterable[bytes], headers: Mapping[str, str], limits: Limits) -> AsyncIterator[bytes]:
    """A body as it arrives, given up as soon as it is known to be too large.

    Args:
        chunks: as they arrive.
        headers: for Content-Length, which spares the reading.
        limits: `body_bytes` holds for the bytes on the wire here, and once more after decompression.

    Raises:
        PayloadTooLargeError: over the limit.
    """
    declared = header(headers, "Content-Length")
    if declared is not None and declared.isascii() and declared.isdigit():
        significant = declared.lstrip("0") or "0"
        if len(significant) > 18 or int(significant) > limits.body_bytes:
            raise _too_large(limits)
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > limits.body_bytes:
            raise _too_large(limits)
        yield chunk


async def read_body(chunks: AsyncIterable[bytes], headers: Mapping[str, str], limits: Limits) -> bytes:
    """All of a body; see `within`."""
    return b"".join([chunk async for chunk in within(chunks, headers, limits)])


def check_size(body: bytes, limits: Limits) -> None:
    """Whether a body that came in one piece is small enough, as `within` sees to for others.

    Raises:
        PayloadTooLargeError: over the limit.
    """
    if len(body) > limits.body_bytes:
        raise _too_large(limits)


def _too_large(limits: Limits) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The body is larger than {limits.body_bytes} bytes, the most that is accepted.")


def decoded_body(headers: Mapping[str, str], body: bytes, limits: Limits) -> bytes:
    """The body with its Content-Encoding undone.

    Raises:
        InvalidTensorError: an encoding other than gzip, deflate and identity, or a body that is not in it.
        PayloadTooLargeError: over `limits.body_bytes`, before or after; no more than that is ever inflated.
    """
    encoding = (header(headers, "Content-Encoding") or "identity").lower()
    if encoding == "identity":
        return body
    # HTTP's deflate is the zlib format (RFC 9110, section 8.4.1.2); 16 more window bits mean gzip.
    window_bits = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
    if encoding not in window_bits:
        raise InvalidTensorError(f"Content-Encoding {shown(encoding)} is not accepted; use gzip, deflate or none.")
    inflate = zlib.decompressobj(window_bits[encoding])
    try:
        plain = inflate.decompress(body, limits.body_bytes + 1)
    except zlib.error as error:
        raise InvalidTensorError(f"The body is not {encoding}, as its Content-Encoding says: {error}.") from error
    if len(plain) > limits.body_bytes:
        raise PayloadTooLargeError(f"The body inflates to more than {limits.body_bytes} bytes, the most accepted.")
    if not inflate.eof or inflate.unused_data:
        fault = "has bytes after its end" if inflate.eof else "is cut short"
        raise InvalidTensorError(f"The {encoding} body {fault}; send one complete stream.")
    return plain


class BodyForm(NamedTuple):
    """What the headers say of a body: the bytes of its JSON header (None: all is JSON), and its Content-Encoding."""

    header_length: int | None
    encoding: str | None


def body_form(headers: Mapping[str, str]) -> BodyForm:
    """Of headers that come again with each request of a connection it is found out once.

    Raises:
        InvalidTensorError: the header's length is not a whole number.
    """
    if not isinstance(headers, Lowered):
        return BodyForm(header_length(headers), header(headers, "Content-Encoding"))
    if headers.form is None:
        headers.form = BodyForm(header_length(headers), header(headers, "Content-Encoding"))
    form: BodyForm = headers.form
    return form


def is_soon_read(form: BodyForm, body_bytes: int) -> bool:
    """Whether to read a body does not hold up the event loop: binary tensors are views of it and cost nothing."""
    json_bytes = body_bytes if form.header_length is None else form.header_length
    return json_bytes <= _INLINE_JSON_BYTES and form.encoding is None


async def elsewhere(read: Callable[[], T]) -> T:
    """Reads a body where that does not hold up the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_DECODING, read)


async def decoded(decode: Callable[[], T], headers: Mapping[str, str], json_bytes: int) -> T:
    """Runs `decode` where it does not hold up the event loop for long.

    Args:
        decode: from a body to what it means.
        headers: of the request, for its Content-Encoding.
        json_bytes: of the body as it came; binary tensors are views of it and cost nothing.
    """
    if is_soon_read(BodyForm(None, header(headers, "Content-Encoding")), json_bytes):
        return decode()
    return await elsewhere(decode)


def read_request(
    model: str,
    version: str,
    form: BodyForm,
    body: bytes,
    *,
    now_s: float,
    principal: str,
    trust_request_id: bool,
    limits: Limits,
) -> InferRequest:
    """The request of a body as it came; see `oip.decode_request`.

    Raises:
        RequestError: it cannot be read.
    """
    return decode_request(
        model,
        body if form.encoding is None else decoded_body({"content-encoding": form.encoding}, body, limits),
        form.header_length,
        version=version,
        now_s=now_s,
        principal=principal,
        trust_request_id=trust_request_id,
        limits=limits,
    )


def response_reply(plane: DataPlane, request: InferRequest, response: InferResponse) -> Reply:
    """What a request is answered with.

    Raises:
        InvalidTensorError: the response cannot travel as the request asks.
    """
    labels = class_labels(plane, request, response) if request.outputs else ()
    encoded = encode_response(request, response, labels)
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

    Raises:
        FirstlineError: why there is no answer; `error_reply` says it.
    """
    now_s = clock.monotonic_s() if arrived_s is None else arrived_s
    form = body_form(headers)

    def read() -> InferRequest:
        return read_request(
            *(model, version, form, body),
            now_s=now_s,
            principal=principal,
            trust_request_id=trust_request_id,
            limits=plane.limits,
        )

    request = read() if is_soon_read(form, len(body)) else await elsewhere(read)
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
