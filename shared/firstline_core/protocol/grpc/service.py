"""`inference.GRPCInferenceService` on a data plane.

Every call is handled as a stream of raw messages, which is the same on the wire. So the caller is authenticated before
a byte of the message is read, and a message that protobuf cannot parse gets a readable error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.json_format import ParseDict
from grpc import StatusCode
from msgspec.structs import replace

from firstline_core import errors
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.protocol import extensions, http
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.grpc import codec
from firstline_core.protocol.grpc.schema import SERVICE, message
from firstline_core.protocol.oip import Origin
from firstline_core.telemetry import logs
from firstline_core.telemetry.trace import from_lines
from firstline_core.types import TraceContext

# Time limit of one message, as for HTTP bodies.
READ_TIMEOUT_S = 60.0
# Time after which the first request of a stream no longer relies on the authentication at its start.
_FRESH_S = 1.0
# Size limit of a message that is not an inference and has only a few names.
_SMALL_BYTES = 65_536

INFER, OPERATE = "infer", "operate"
"""The permission that a call requires: to use models, or to change which are served."""

log = logs.logger(__name__)

Context = Any  # grpc.aio.ServicerContext, whose type stubs are incomplete
Messages = AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, and whether the tier uses its request ids."""

    principal: str
    trust_request_id: bool = False


class Authorize(Protocol):
    """Returns the caller of a call, which has the permission `INFER` or `OPERATE`; raises `FirstlineError` without it.

    The check counts as a use of the caller's key if `counts` is true.
    """

    async def __call__(self, context: Context, scope: str, *, counts: bool = True) -> Caller: ...


@dataclass(frozen=True, slots=True)
class CallHooks:
    """The functions of a tier that authenticate, limit and record calls.

    Args:
        authorize: authenticates the caller of a call.
        share: context manager of a caller's share of the bodies in flight: a function that reserves bytes, and raises
            `QueueFullError` if they do not fit.
        record: called at the end of each inference with the model, the principal, the seconds, and the error.
        unread: returns the error of an inference that is refused before its message is read; None to read it.
        no_room: called after a call was read and refused because of overload.
    """

    authorize: Authorize
    share: Callable[[str], AbstractContextManager[Callable[[int], None]]]
    record: Callable[[str, str, float, FirstlineError | None], None]
    unread: Callable[[Context], FirstlineError | None] = lambda _: None
    no_room: Callable[[Context], None] = lambda _: None


class InferenceService:
    """Answers the service's calls.

    Args:
        plane: the tier that answers.
        hooks: of the tier.
        clock: of the deadlines.
    """

    def __init__(self, plane: DataPlane, hooks: CallHooks, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._plane = plane
        self._hooks = hooks
        self._clock = clock

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler for a server of `grpc.aio`."""
        answers: dict[str, Callable[[Any], Any]] = {
            "ServerLive": lambda _: _reply("ServerLiveResponse", live=self._plane.live()),
            "ServerReady": lambda _: _reply("ServerReadyResponse", ready=self._plane.ready()),
            "ServerMetadata": lambda _: _parsed("ServerMetadataResponse", http.server_metadata_json(self._plane)),
            "ModelReady": lambda request: _reply(
                "ModelReadyResponse", ready=self._plane.model_ready(request.name, request.version)
            ),
            "ModelMetadata": lambda request: _parsed(
                "ModelMetadataResponse", http.model_metadata_json(self._plane.metadata(request.name, request.version))
            ),
            "ModelConfig": lambda request: _parsed(
                "ModelConfigResponse", {"config": self._plane.config(request.name, request.version)}
            ),
            "ModelStatistics": lambda request: _parsed(
                "ModelStatisticsResponse", extensions.statistics_json(self._plane, request.name, request.version)
            ),
            "RepositoryIndex": lambda request: _parsed(
                "RepositoryIndexResponse",
                {"models": extensions.index_json(self._plane.index(), ready_only=request.ready)},
            ),
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        scopes = {"ServerLive": "", "ServerReady": "", "RepositoryModelLoad": OPERATE, "RepositoryModelUnload": OPERATE}
        methods = {
            name: grpc.stream_unary_rpc_method_handler(self._simple(name, answer, scope=scopes.get(name, INFER)))
            for name, answer in answers.items()
        }
        methods["ModelInfer"] = grpc.stream_unary_rpc_method_handler(self._infer)
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        return grpc.method_handlers_generic_handler(SERVICE.full_name, methods)

    def _simple(self, name: str, answer: Callable[[Any], Any], *, scope: str) -> Callable[..., Awaitable[bytes]]:
        kind = SERVICE.methods_by_name[name].input_type.name

        async def call(_messages: Messages, context: Context) -> bytes:
            try:
                sent = b""  # that of a call that is open to all: its message, which may be large, is not read
                if scope:
                    await self._hooks.authorize(context, scope)
                    sent = await _first(context)
                if len(sent) > _SMALL_BYTES:
                    raise errors.InvalidTensorError(f"The message is {len(sent)} bytes; a {kind} has a few names.")
                reply = answer(codec.parse(kind, sent))
                if asyncio.iscoroutine(reply):
                    reply = await reply
                encoded: bytes = reply.SerializeToString()
                return encoded
            except FirstlineError as error:
                return _refuse(context, error)
            except Exception:  # noqa: BLE001 (the outermost loop of a call, which logs it)
                return _refuse(context, _unexpected(name))

        return call

    async def _infer(self, _messages: Messages, context: Context) -> bytes:
        refused = self._hooks.unread(context)
        if refused is not None:
            return _refuse(context, refused)
        arrived_s, remaining_s = self._clock.monotonic_s(), context.time_remaining()
        deadline_s = None if remaining_s is None else arrived_s + remaining_s
        inference = _Inference(self._hooks.record, self._clock, arrived_s, _trace_of_call(context), deadline_s)
        try:
            with inference.recorded("ModelInfer"):
                caller = await self._hooks.authorize(context, INFER)
                inference.principal = caller.principal
                with self._hooks.share(caller.principal) as take:
                    sent = await _first(context)
                    take(len(sent))
                    answer = await self._answer(sent, caller, inference)
                    encoded: bytes = answer.SerializeToString()
        except FirstlineError as error:
            if isinstance(error, errors.QueueFullError):
                self._hooks.no_room(context)
            return _refuse(context, error)
        return encoded

    async def _stream_infer(self, _messages: Messages, context: Context) -> AsyncIterator[bytes]:
        """Answers requests one after the other, in their order; an error ends only its own request.

        Each request is authenticated, because access may end while a stream is open, and rates count requests. The
        start of the stream, before a byte is read, counts as its first request.
        """
        try:
            caller = await self._hooks.authorize(context, INFER)
        except FirstlineError as error:
            _refuse(context, error)
            return
        started_s, is_first = self._clock.monotonic_s(), True
        while (sent := await context.read()) is not grpc.aio.EOF:
            arrived_s, trace = self._clock.monotonic_s(), _trace_of_call(context)
            inference = _Inference(self._hooks.record, self._clock, arrived_s, trace, principal=caller.principal)
            limited: errors.RateLimitedError | None = None
            try:
                if not is_first or arrived_s > started_s + _FRESH_S:
                    await self._hooks.authorize(context, INFER, counts=not is_first)
            except errors.RateLimitedError as error:
                limited = error
            except FirstlineError as error:
                self._hooks.record("", caller.principal, 0.0, error)
                _refuse(context, error)
                return
            is_first = False
            reply = message("ModelStreamInferResponse")()
            try:
                with inference.recorded("ModelStreamInfer"), self._hooks.share(caller.principal) as take:
                    if limited is not None:
                        raise limited
                    take(len(sent))
                    reply.infer_response.CopyFrom(await self._answer(sent, caller, inference))
                # Triton's marker for models with several responses; here there is always one.
                reply.infer_response.parameters["triton_final_response"].bool_param = True
            except FirstlineError as error:
                reply.error_message = error.public
                reply.infer_response.parameters["code"].string_param = error.code
                reply.infer_response.id = inference.id
                error.__traceback__ = None  # see `_refuse`
            yield reply.SerializeToString()

    async def _answer(self, sent: bytes, caller: Caller, inference: _Inference) -> Any:
        limits = self._plane.limits
        origin = Origin(inference.arrived_s, caller.principal, caller.trust_request_id, limits, inference.trace)
        head, raw = codec.split(sent, limits)
        request = await http.run_decoder(partial(codec.decode_request, head, raw, origin), len(head))
        inference.model, inference.id = request.model, request.id
        if (deadline_s := inference.deadline_s) is not None:
            request = replace(request, deadline_s=min(deadline_s, request.deadline_s or deadline_s))
        response = await self._plane.infer(request)
        return codec.encode_response(request, response, http.class_labels(self._plane, request, response))

    async def _load(self, request: Any) -> Any:
        extensions.check_load_parameters(request.parameters)
        await self._plane.load(name := request.model_name or request.repository_name)
        return _reply("RepositoryModelLoadResponse", model_name=name, isLoaded=True)

    async def _unload(self, request: Any) -> Any:
        await self._plane.unload(name := request.model_name or request.repository_name)
        return _reply("RepositoryModelUnloadResponse", model_name=name, isUnloaded=True)


@dataclass(eq=False, slots=True)
class _Inference:
    """One inference, whose end is recorded."""

    record: Callable[[str, str, float, FirstlineError | None], None]
    clock: Clock
    arrived_s: float
    trace: TraceContext | None
    deadline_s: float | None = None
    principal: str = ""
    model: str = ""
    id: str = ""

    @contextmanager
    def recorded(self, call: str) -> Iterator[None]:
        """Records how the block ends; an unexpected failure is logged and raised as an error for the client."""
        error: FirstlineError | None = None
        try:
            yield
        except FirstlineError as failure:
            error = failure
            raise
        except asyncio.CancelledError:  # the client cancelled, or its deadline passed
            error = errors.LinkDownError("The client ended the call before it was answered.")
            raise
        except Exception as failure:
            error = _unexpected(call)
            raise error from failure
        finally:
            self.record(self.model, self.principal, self.clock.monotonic_s() - self.arrived_s, error)


def _trace_of_call(context: Context) -> TraceContext | None:
    """Returns the trace of a request, and adds it to the log lines of this context."""
    trace = from_lines(context.invocation_metadata() or ())
    if trace is not None:
        logs.FACTS.set(trace.facts)  # until the decoded request adds more facts
    return trace


def _reply(kind: str, /, **fields: object) -> Any:
    return message(kind)(**fields)


def _parsed(kind: str, value: dict[str, Any]) -> Any:
    return ParseDict(value, message(kind)())


async def _first(context: Context) -> bytes:
    """Returns the only message of a call.

    gRPC's iterator would keep the message until the garbage collector frees both.

    Raises:
        InvalidTensorError: the call has no message.
        RemoteTimeoutError: it came too slowly.
    """
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            sent: bytes = await context.read()
    except TimeoutError as error:
        raise errors.RemoteTimeoutError(f"The message did not come within {READ_TIMEOUT_S:g} seconds.") from error
    if sent is grpc.aio.EOF:
        raise errors.InvalidTensorError("The call has no message; send one.")
    return sent


def _refuse(context: Context, error: FirstlineError) -> bytes:
    """Ends the call with the status, message and code of an error.

    `context.abort` would raise, and gRPC never frees the frames that its exception passes, nor the message in them.
    """
    if error.public != error.message:
        log.info("call refused", request_id=error.identify(), code=error.code, error=error.message)
    context.set_code(status_of(error))
    context.set_details(error.public)
    context.set_trailing_metadata(trailers_of(error))
    error.__traceback__ = None  # it leads to frames that refer to the error and to the message
    return b""


def _unexpected(call: str) -> FirstlineError:
    """Logs the present exception under an id, and returns the error that names only this id."""
    request_id = new_request_id()
    log.exception("call failed unexpectedly", call=call, request_id=request_id)
    error = FirstlineError(f"The server failed on this call; its log has the reason under {request_id}.")
    error.request_id = request_id
    return error


CODE = "firstline-code"
"""Trailing metadata: the error's code, as in a REST body."""
RETRY_AFTER_MS = "grpc-retry-pushback-ms"
"""Trailing metadata: time until a retry; gRPC clients that retry respect it (gRFC A6)."""
REQUEST_ID = "firstline-request-id"

# A class without an entry has its parent's.
_STATUS: dict[type[FirstlineError], StatusCode] = {
    errors.RequestError: StatusCode.INVALID_ARGUMENT,
    errors.UnauthorizedError: StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: StatusCode.PERMISSION_DENIED,
    errors.UnknownModelError: StatusCode.NOT_FOUND,
    errors.UnknownAnswerError: StatusCode.NOT_FOUND,
    errors.ModelMismatchError: StatusCode.FAILED_PRECONDITION,
    errors.ReusedRequestIdError: StatusCode.ALREADY_EXISTS,
    errors.PayloadTooLargeError: StatusCode.RESOURCE_EXHAUSTED,  # as gRPC itself for a message over its limit
    errors.RateLimitedError: StatusCode.RESOURCE_EXHAUSTED,
    errors.CapacityError: StatusCode.UNAVAILABLE,
    errors.LinkError: StatusCode.UNAVAILABLE,
    errors.DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    errors.RemoteTimeoutError: StatusCode.DEADLINE_EXCEEDED,
    FirstlineError: StatusCode.INTERNAL,
}


def status_of(error: FirstlineError) -> StatusCode:
    """Returns the gRPC status of an error."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def trailers_of(error: FirstlineError) -> tuple[tuple[str, str], ...]:
    """Returns the trailing metadata of an error."""
    trailers = [(CODE, error.code), (REQUEST_ID, error.identify())]
    if error.retry_after_s is not None:
        trailers.append((RETRY_AFTER_MS, str(max(1, round(min(error.retry_after_s, 86_400.0) * 1000)))))
    return tuple(trailers)
