"""V2 over HTTP, independent of web frameworks: the error table, headers, limits and decoding of bodies, and replies.

Both tiers implement `data_plane.DataPlane`, and their web servers only transport `Reply` values. Error bodies suit
tritonclient, which reads only the status, and KServe's client, which reads the JSON.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Self, TypeVar

import msgspec
import orjson

from firstline_core import errors
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Encoded, Origin, decode_request, encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.wording import counted
from firstline_core.types import InferRequest, InferResponse, ModelMetadata, TensorSpec

CONTENT_TYPE = "Content-Type"
HEADER_LENGTH = "Inference-Header-Content-Length"
RETRY_AFTER = "Retry-After"

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"
EVENT_STREAM_TYPE = "text/event-stream"


class StaleConnectionError(errors.RemoteTimeoutError):
    """A kept connection gave no byte after it had been idle; the network may have forgotten it."""


# The only table from errors to HTTP statuses, which are Triton's. A class without an entry has its parent's status.
_STATUS: dict[type[errors.FirstlineError], int] = {
    errors.RequestError: 400,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
    errors.UnknownModelError: 404,
    errors.UnknownAnswerError: 404,
    errors.NotFoundError: 404,
    errors.NotAcceptableError: 406,
    errors.ConflictError: 409,
    errors.ModelMismatchError: 409,
    errors.ReusedRequestIdError: 409,
    errors.PayloadTooLargeError: 413,
    errors.RateLimitedError: 429,
    errors.SignatureError: 422,
    errors.MetadataExpiredError: 422,
    errors.MetadataRollbackError: 409,
    errors.MetadataMismatchError: 409,
    errors.IncompatibleTargetError: 409,
    errors.SelfTestError: 409,
    errors.NoRoomError: 409,
    errors.CapacityError: 503,
    errors.LinkError: 503,
    errors.DeadlineExceededError: 504,
    errors.RemoteTimeoutError: 504,
    errors.FirstlineError: 500,
}

# The errors of replies without a code of Firstline, such as those of a proxy.
_BY_STATUS: dict[int, type[errors.FirstlineError]] = {
    401: errors.UnauthorizedError,
    403: errors.UnauthorizedError,
    404: errors.UnknownModelError,
    408: errors.RemoteTimeoutError,
    409: errors.ModelMismatchError,
    413: errors.PayloadTooLargeError,
    429: errors.RateLimitedError,
    502: errors.LinkError,
    503: errors.CapacityError,
    504: errors.RemoteTimeoutError,
}

_MESSAGE_CHARS = 1000
_LENGTH_DIGITS = 18  # enough for any body; limits the work of int()
# A longer delay means "not today", and must fit the header of a server that forwards the error.
_RETRY_AFTER_MAX_S = 86_400.0

# Time limit of a body or downloaded file: this time, and one more second for each `LEAST_BYTES_PER_S` received. Even
# the slowest mobile links are faster.
GRACE_S = 20.0
LEAST_BYTES_PER_S = 1024

# Takes a few milliseconds to parse, during which no other request runs; larger JSON is parsed in a thread.
_INLINE_JSON_BYTES = 256 * 1024

# One thread: parsing holds the interpreter's lock, so more threads would not be faster, and would delay the event loop.
_DECODING = ThreadPoolExecutor(1, thread_name_prefix="decoding")

# Server-sent events: the ids are the same for every answer, so a client that reconnects with `Last-Event-ID`, even
# after a restart of the server, gets each event once. https://html.spec.whatwg.org/multipage/server-sent-events.html
PROVISIONAL_ID, LAST_ID = 1, 2
HEARTBEAT = b":\n\n"
# A buffering proxy would delay the final answer.
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

T = TypeVar("T")


def header(headers: Mapping[str, str], name: str) -> str | None:
    """Returns a header's value without surrounding spaces; None if it is absent.

    Args:
        headers: by lower-case name, or in a mapping that ignores the case of names.
        name: in upper or lower case.
    """
    value = headers.get(name.lower())
    return None if value is None else value.strip()


def header_length(headers: Mapping[str, str]) -> int | None:
    """Returns the size of the JSON at the start of the body; None without the header, when all of the body is JSON.

    Raises:
        InvalidTensorError: the header is not a whole number.
    """
    value = header(headers, HEADER_LENGTH)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _LENGTH_DIGITS):
        raise errors.InvalidTensorError(
            f"{HEADER_LENGTH} is {shown(value)}; give the number of bytes of the JSON header."
        )
    return int(value)


def last_event_id(headers: Mapping[str, str]) -> int:
    """Returns the id of the last event that the client has received; 0 for none.

    Raises:
        RequestError: the id does not exist.
    """
    value = header(headers, "Last-Event-ID") or "0"
    if value not in ("0", str(PROVISIONAL_ID), str(LAST_ID)):
        raise errors.RequestError(
            f"Last-Event-ID is {shown(value)}; events have the ids {PROVISIONAL_ID} and {LAST_ID}. Leave the header "
            "out to start from the beginning."
        )
    return int(value)


def event(event_id: int, data: bytes) -> bytes:
    """Returns one server-sent event with JSON data without line breaks."""
    return b"id: %d\ndata: %b\n\n" % (event_id, data)


def status_of(error: errors.FirstlineError) -> int:
    """Returns the HTTP status of an error."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def error_body(error: errors.FirstlineError) -> bytes:
    """Returns `{"error": sentence, "code": code, "request_id": id}`, with `retry_after_s` if the error has it."""
    body: dict[str, Any] = {"error": error.public, "code": error.code, "request_id": error.identify()}
    if error.retry_after_s is not None:
        body["retry_after_s"] = round(error.retry_after_s, 3)
    return orjson.dumps(body)


def closing_response(status: int, error: errors.FirstlineError) -> bytes:
    """Returns a complete HTTP/1.1 error response that closes the connection, for bytes that are not a request."""
    body = error_body(error)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode("ascii") + body


def error_from(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> errors.FirstlineError:
    """Returns the error in a server's reply, by its code, or otherwise by its status.

    Args:
        status: any except 2xx.
        body: decoded if it is from `error_body` or has the form of RFC 9457.
        headers: for Retry-After in seconds, limited to a day; a date is ignored.
    """
    document = json_object(body)
    code, delay_s = document.get("code"), document.get("retry_after_s")
    message = document.get("error", document.get("detail"))
    if not isinstance(message, str) or not message:
        message = f"The server answered with HTTP status {status} and no reason."
    retry_after_s: float | None = None
    if isinstance(delay_s, int | float) and not isinstance(delay_s, bool) and delay_s >= 0:
        retry_after_s = min(float(delay_s), _RETRY_AFTER_MAX_S)
    elif (after := header(headers or {}, RETRY_AFTER)) is not None and after.isascii() and after.isdigit():
        retry_after_s = min(float(after), _RETRY_AFTER_MAX_S)
    kind = errors.BY_CODE.get(code) if isinstance(code, str) else None
    return (kind or _kind_of(status))(message[:_MESSAGE_CHARS], retry_after_s=retry_after_s)


def error_of_gateway(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> errors.FirstlineError:
    """Returns the error in an answer that should be a gateway's; see `error_from`.

    Proxies, captive portals and content delivery networks answer with any status. Without an error code of Firstline it
    does not concern the request, which may succeed later, so that it ends neither a promise nor an update.
    """
    if is_own_error(body):
        return error_from(status, body, headers)
    error = error_from(status, b"", headers)
    if isinstance(error, errors.UnauthorizedError | errors.CapacityError | errors.LinkError):
        return error
    return errors.ProtocolError(f"HTTP status {status}, but not from a Firstline gateway.")


def is_own_error(body: bytes) -> bool:
    """Returns whether a body has a sentence and an error code of Firstline; else a proxy or another server answered."""
    document = json_object(body)
    code, message = document.get("code"), document.get("error", document.get("detail"))
    return isinstance(code, str) and code in errors.BY_CODE and isinstance(message, str)


def json_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body; an empty one for any other body."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _kind_of(status: int) -> type[errors.FirstlineError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return errors.RequestError
    return errors.FirstlineError if status >= 500 else errors.ProtocolError


class BodyBudget:
    """Limits the bytes of all request bodies in memory; without it, a few clients could fill the memory.

    Args:
        limit_bytes: for all bodies together.
        fair: whether one client may hold at most as many bytes as remain free, so that there is always room for
            another client.

    Attributes:
        held_bytes: of all bodies at this moment.
        of_principal: the same of each client that has any.
        decompressing: held while a body is decompressed, until its bytes are reserved.
    """

    def __init__(self, limit_bytes: int, *, fair: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.fair = fair
        self.held_bytes = 0
        self.of_principal: dict[str, int] = {}
        self.decompressing = asyncio.Lock()

    def share(self, principal: str) -> BodyShare:
        """Returns what one request holds: a function that reserves bytes, in a context that releases them."""
        return BodyShare(self, principal)


class BodyShare:
    """The bytes of one request, see `BodyBudget.share`. Calling it reserves some; the end of its `with` releases all.

    Args:
        budget: of all requests.
        principal: the client.
    """

    __slots__ = ("_budget", "_held_bytes", "_principal")

    def __init__(self, budget: BodyBudget, principal: str) -> None:
        self._budget, self._principal, self._held_bytes = budget, principal, 0

    def __call__(self, size_bytes: int) -> None:
        """Reserves bytes. They count when they arrive, not when they are announced.

        Raises:
            QueueFullError: the bytes do not fit.
        """
        budget = self._budget
        of_client, free_bytes = budget.of_principal.get(self._principal, 0), budget.limit_bytes - budget.held_bytes
        if size_bytes > free_bytes or (budget.fair and of_client + size_bytes > free_bytes - size_bytes):
            raise errors.QueueFullError(
                f"Your requests in progress hold {of_client} bytes, and {free_bytes} are free; retry after the "
                "time given with this error, or raise api.bodies_limit_bytes.",
                retry_after_s=1.0,
            )
        budget.held_bytes += size_bytes
        budget.of_principal[self._principal] = of_client + size_bytes
        self._held_bytes += size_bytes

    async def decompressed(self, headers: Mapping[str, str], body: bytes, limits: Limits) -> bytes:
        """Returns a body without its Content-Encoding, and reserves the bytes that this adds.

        Decompresses one body at a time: the size of a body, which has to fit, is known only afterwards.

        Args:
            headers: by lower-case name.
            body: whose bytes are reserved.
            limits: of the body.

        Raises:
            QueueFullError: the bytes do not fit.
            RequestError: see the function `decompressed`.
        """
        if "content-encoding" not in headers:
            return body
        async with self._budget.decompressing:
            plain = await asyncio.get_running_loop().run_in_executor(_DECODING, decompressed, headers, body, limits)
            self(max(0, len(plain) - len(body)))
        return plain

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        budget = self._budget
        budget.held_bytes -= self._held_bytes
        if remaining_bytes := budget.of_principal.pop(self._principal, 0) - self._held_bytes:
            budget.of_principal[self._principal] = remaining_bytes


async def limited_chunks(
    chunks: AsyncIterable[bytes], headers: Mapping[str, str], limits: Limits
) -> AsyncIterator[bytes]:
    """Yields the chunks of a body, until it is known to be too large.

    Args:
        chunks: as they arrive.
        headers: for Content-Length, with which a body is refused before it is read.
        limits: `body_bytes` applies to the bytes received here, and again after decompression.

    Raises:
        PayloadTooLargeError: over the limit.
    """
    check_declared_size(headers, limits)
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        limits.check_body(size_bytes)
        yield chunk


async def timed_chunks(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yields the chunks of a body while they arrive fast enough; see `body_time_limit`."""
    async with body_time_limit() as note_bytes:
        async for chunk in chunks:
            note_bytes(len(chunk))
            yield chunk


@asynccontextmanager
async def body_time_limit() -> AsyncIterator[Callable[[int], None]]:
    """Bounds the time in which a body is read. Requires a running task.

    Yields:
        A function to call with the size of each part that arrives.

    Raises:
        RemoteTimeoutError: the parts arrive too slowly.
    """
    received_bytes = 0
    start_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(start_s + GRACE_S) as deadline:

            def note_bytes(size_bytes: int) -> None:
                nonlocal received_bytes
                received_bytes += size_bytes
                deadline.reschedule(start_s + GRACE_S + received_bytes / LEAST_BYTES_PER_S)

            yield note_bytes
    except TimeoutError as error:
        raise errors.RemoteTimeoutError(
            f"Only {counted(received_bytes, 'byte')} of the body came in time; send at least "
            f"{LEAST_BYTES_PER_S} bytes a second."
        ) from error


async def read_body(chunks: AsyncIterable[bytes], headers: Mapping[str, str], limits: Limits) -> bytes:
    """Returns a whole body; see `limited_chunks`."""
    return b"".join([chunk async for chunk in limited_chunks(chunks, headers, limits)])


def check_declared_size(headers: Mapping[str, str], limits: Limits) -> None:
    """Checks the Content-Length of a body that is not read yet.

    Raises:
        PayloadTooLargeError: over the limit.
    """
    declared = header(headers, "Content-Length")
    if declared is not None and declared.isascii() and declared.isdigit():
        limits.check_body(int(declared[:_LENGTH_DIGITS]))


def decompressed(headers: Mapping[str, str], body: bytes, limits: Limits) -> bytes:
    """Returns the body without its Content-Encoding.

    Raises:
        InvalidTensorError: an encoding other than gzip, deflate and identity, or a body in another encoding.
        PayloadTooLargeError: over `limits.body_bytes`, before or after; no more than that is decompressed.
    """
    encoding = (header(headers, "Content-Encoding") or "identity").lower()
    if encoding == "identity":
        return body
    # HTTP's deflate is the zlib format (RFC 9110, section 8.4.1.2); 16 more window bits mean gzip.
    window_bits = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
    if encoding not in window_bits:
        raise errors.InvalidTensorError(
            f"Content-Encoding {shown(encoding)} is not accepted; use gzip or deflate, or leave the header out."
        )
    inflate = zlib.decompressobj(window_bits[encoding])
    try:
        plain = inflate.decompress(body, limits.body_bytes + 1)
    except zlib.error as error:
        raise errors.InvalidTensorError(
            f"The body is not {encoding}, as its Content-Encoding says; compress it, or leave the header out."
        ) from error
    if len(plain) > limits.body_bytes:
        raise errors.PayloadTooLargeError(
            f"The body inflates to more than {limits.body_bytes} bytes, the most accepted."
        )
    if not inflate.eof or inflate.unused_data:
        fault = "has bytes after its end" if inflate.eof else "is cut short"
        raise errors.InvalidTensorError(f"The {encoding} body {fault}; send one complete stream.")
    return plain


async def run_decoder(decode: Callable[[], T], json_bytes: int) -> T:
    """Calls `decode`, in a thread if it could block the event loop for long.

    Args:
        decode: decodes a request.
        json_bytes: bytes to parse; binary tensors do not count, because they are views of the body.
    """
    if json_bytes <= _INLINE_JSON_BYTES:
        return decode()
    return await asyncio.get_running_loop().run_in_executor(_DECODING, decode)


class Reply(msgspec.Struct):
    """An HTTP response, independent of a web framework."""

    status: int
    headers: dict[str, str]
    body: bytes


def json_reply(value: object, status: int = 200) -> Reply:
    """Returns a JSON value as a reply."""
    return Reply(status, {CONTENT_TYPE: JSON_TYPE}, orjson.dumps(value))


def error_reply(error: errors.FirstlineError) -> Reply:
    """Returns the reply for an error."""
    status = status_of(error)
    headers = {CONTENT_TYPE: JSON_TYPE}
    if error.retry_after_s is not None:
        headers[RETRY_AFTER] = str(max(1, math.ceil(error.retry_after_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Reply(status, headers, error_body(error))


def headers_for(encoded: Encoded) -> dict[str, str]:
    """Returns the headers of an encoded V2 body."""
    if encoded.header_length is None:
        return {CONTENT_TYPE: JSON_TYPE}
    return {CONTENT_TYPE: BINARY_TYPE, HEADER_LENGTH: str(encoded.header_length)}


async def read_infer_request(
    model: str, version: str, headers: Mapping[str, str], body: bytes, origin: Origin
) -> InferRequest:
    """Decodes a V2 inference request.

    Args:
        model: name in the path, unquoted.
        version: version in the path, "" for the current one.
        headers: headers of the request.
        body: body of the request, without its Content-Encoding.
        origin: of the request; it came when its head came.

    Raises:
        RequestError: the request is invalid.
    """
    length = header_length(headers)
    decode = partial(decode_request, model, body, length, origin, version=version)
    return await run_decoder(decode, len(body) if length is None else length)


def response_reply(plane: DataPlane, request: InferRequest, response: InferResponse) -> Reply:
    """Returns the reply with a V2 inference response.

    Raises:
        InvalidTensorError: the response cannot be encoded in the requested form.
    """
    encoded = encode_response(request, response, class_labels(plane, request, response))
    return Reply(200, headers_for(encoded), encoded.body)


def class_labels(plane: DataPlane, request: InferRequest, response: InferResponse) -> tuple[str, ...]:
    """Returns the labels of the answering model if an output is requested as classes; () if they are unknown."""
    if not any(output.classification for output in request.outputs):
        return ()
    try:
        return plane.metadata(response.model, response.version).labels
    except errors.UnknownModelError:  # a model of the other tier
        return ()


def server_metadata_json(plane: DataPlane) -> dict[str, Any]:
    """Returns the server's metadata, as V2 describes it over REST and gRPC."""
    return {"name": plane.server_name, "version": plane.server_version, "extensions": list(plane.extensions)}


def live_reply(plane: DataPlane) -> Reply:
    """Answers `GET /v2/health/live`."""
    return _health_reply("live", plane.live())


def ready_reply(plane: DataPlane) -> Reply:
    """Answers `GET /v2/health/ready`."""
    return _health_reply("ready", plane.ready())


def model_ready_reply(plane: DataPlane, model: str, version: str) -> Reply:
    """Answers `GET /v2/models/{model}[/versions/{version}]/ready`.

    Raises:
        UnknownModelError: there is no such model or version.
    """
    return _health_reply("ready", plane.model_ready(model, version), name=model)


def _health_reply(state: str, good: bool, **more: str) -> Reply:
    """Returns the reply about a state, with a 4xx status if it is not good, as V2 requires."""
    return json_reply({**more, state: good}, 200 if good else 400)


def model_metadata_reply(plane: DataPlane, model: str, version: str) -> Reply:
    """Answers `GET /v2/models/{model}[/versions/{version}]`; `labels` and `task` are Firstline's additions.

    Raises:
        UnknownModelError: there is no such model or version.
    """
    metadata = plane.metadata(model, version)
    described = model_metadata_json(metadata)
    if metadata.labels:
        described["labels"] = metadata.labels
    if metadata.task is not None:
        described["task"] = msgspec.to_builtins(metadata.task)
    return json_reply(described)


def model_metadata_json(metadata: ModelMetadata) -> dict[str, Any]:
    """Returns a model's metadata, as V2 describes it over REST and gRPC."""
    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "inputs": [_spec(spec) for spec in metadata.inputs],
        "outputs": [_spec(spec) for spec in metadata.outputs],
    }


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
