"""`inference.GRPCInferenceService` on a data plane: who calls, what is asked, what is answered.

Every call is taken as a stream of raw messages, which on the wire is the same: so the caller is known before a byte of
the message is read, and a message that protobuf cannot read is refused in a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, InvalidTensorError, LinkDownError, QueueFullError, RemoteTimeoutError
from firstline_core.ids import new_request_id
from firstline_core.protocol import extensions, http, http_body
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.grpc import codec
from firstline_core.protocol.grpc.schema import SERVICE, message
from firstline_core.protocol.grpc.statuses import status_of, trailers_of
from firstline_core.telemetry import logs
from firstline_core.telemetry.trace import from_lines
from firstline_core.types import InferRequest, TensorSpec, TraceContext

# What a caller may take for one message; HTTP bodies have as long, and longer the more came of them.
READ_TIMEOUT_S = 60.0
# Of a message that is no inference: a few names.
_SMALL_BYTES = 65_536

INFER, OPERATE = "infer", "operate"
"""What a call wants of its caller: to ask models, or to change which are served."""

log = logs.logger(__name__)

Context = Any  # grpc.aio.ServicerContext, whose stubs say less than its documentation
Messages = AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and whether their own request ids are kept."""

    principal: str
    trust_request_id: bool = False


@dataclass(frozen=True, slots=True)
class CallHooks:
    """What a tier asks of callers, and keeps of their calls.

    Args:
        authorize: finds the caller of a call, who must be allowed `INFER` or `OPERATE`; raises `FirstlineError` where
            they may not.
        share: a caller's part of the bodies under way: a function that takes so many bytes, and raises `QueueFullError`
            where they do not fit.
        record: told how each inference ended: the model, the principal, the seconds, and why there is no answer.
        unread: why an inference is refused before its message is read; None where it is read.
        no_room: told of a call that was read, and then refused for want of room.
    """

    authorize: Callable[[Context, str], Awaitable[Caller]]
    share: Callable[[str], AbstractContextManager[Callable[[int], None]]]
    record: Callable[[str, str, float, FirstlineError | None], None]
    unread: Callable[[Context], FirstlineError | None] = lambda _: None
    no_room: Callable[[Context], None] = lambda _: None


class InferenceService:
    """Answers the service's calls.

    Args:
        plane: the tier that answers.
        hooks: who may call, and what is recorded of calls.
        clock: what deadlines are on.
    """

    def __init__(self, plane: DataPlane, hooks: CallHooks, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._plane = plane
        self._hooks = hooks
        self._clock = clock

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server of `grpc.aio`."""
        answers: dict[str, Callable[[Any], Any]] = {
            "ServerLive": lambda _: _reply("ServerLiveResponse", live=self._plane.live()),
            "ServerReady": lambda _: _reply("ServerReadyResponse", ready=self._plane.ready()),
            "ServerMetadata": lambda _: self._server_metadata(),
            "ModelReady": lambda asked: _reply(
                "ModelReadyResponse", ready=self._plane.model_ready(asked.name, asked.version)
            ),
            "ModelMetadata": self._model_metadata,
            "ModelConfig": lambda asked: _parsed(
                "ModelConfigResponse", {"config": self._plane.config(asked.name, asked.version)}
            ),
            "ModelStatistics": lambda asked: _parsed(
                "ModelStatisticsResponse", extensions.statistics_json(self._plane, asked.name, asked.version)
            ),
            "RepositoryIndex": lambda asked: _parsed(
                "RepositoryIndexResponse",
                {"models": extensions.index_json(self._plane.index(), ready_only=asked.ready)},
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

        async def call(messages: Messages, context: Context) -> bytes:
            try:
                if scope:
                    await self._hooks.authorize(context, scope)
                sent = await _first(messages)
                if len(sent) > _SMALL_BYTES:
                    raise InvalidTensorError(f"The message is {len(sent)} bytes; a {kind} has a few names.")
                try:
                    asked = message(kind).FromString(sent)
                except DecodeError as error:
                    raise InvalidTensorError(f"The message is no {kind}: {error}.") from error
                found = answer(asked)
                if asyncio.iscoroutine(found):
                    found = await found
                encoded: bytes = found.SerializeToString()
                return encoded
            except FirstlineError as error:
                return await _refuse(context, error)
            except Exception:  # the outermost loop of a call
                unforeseen = _unforeseen()
                log.exception("call failed unexpectedly", call=name, request_id=unforeseen.request_id)
                return await _refuse(context, unforeseen)

        return call

    async def _infer(self, messages: Messages, context: Context) -> bytes:
        refused = self._hooks.unread(context)
        if refused is not None:
            return await _refuse(context, refused)
        arrived_s = self._clock.monotonic_s()
        remaining_s = context.time_remaining()
        trace = _followed(context)
        journal = _Journal(self._hooks.record, self._clock, arrived_s)
        try:
            caller = await self._hooks.authorize(context, INFER)
            journal.principal = caller.principal
            with self._hooks.share(caller.principal) as take:
                sent = await _first(messages)
                take(len(sent))
                beside = _Beside(None if remaining_s is None else arrived_s + remaining_s, trace)
                found = await self._answer(sent, caller, arrived_s, beside, journal)
                encoded: bytes = found.SerializeToString()
        except FirstlineError as error:
            journal.ended(error)
            if isinstance(error, QueueFullError):
                self._hooks.no_room(context)
            return await _refuse(context, error)
        except asyncio.CancelledError:  # the client left, or its deadline passed
            journal.ended(LinkDownError("The client ended the call before it was answered."))
            raise
        except Exception:  # the outermost loop of a call
            unforeseen = _unforeseen()
            log.exception("call failed unexpectedly", call="ModelInfer", request_id=unforeseen.request_id)
            journal.ended(unforeseen)
            return await _refuse(context, unforeseen)
        journal.ended(None)
        return encoded

    async def _stream_infer(self, messages: Messages, context: Context) -> AsyncIterator[bytes]:
        """One after the other: answers come in the order of their requests, and an error ends its request alone."""
        try:
            caller = await self._hooks.authorize(context, INFER)
        except FirstlineError as error:
            await _refuse(context, error)
            return
        async for sent in messages:
            arrived_s = self._clock.monotonic_s()
            beside = _Beside(None, _followed(context))
            journal = _Journal(self._hooks.record, self._clock, arrived_s, caller.principal)
            reply = message("ModelStreamInferResponse")()
            try:
                with self._hooks.share(caller.principal) as take:
                    take(len(sent))
                    answered = await self._answer(sent, caller, arrived_s, beside, journal)
                reply.infer_response.CopyFrom(answered)
                # Triton's, for models that give several responses: this one gives one.
                reply.infer_response.parameters["triton_final_response"].bool_param = True
                journal.ended(None)
            except FirstlineError as error:
                journal.ended(error)
                reply.error_message = error.message
                reply.infer_response.parameters["code"].string_param = error.code
                reply.infer_response.id = journal.id
            except asyncio.CancelledError:
                journal.ended(LinkDownError("The client ended the call before it was answered."))
                raise
            except Exception:  # the outermost loop of a request
                unforeseen = _unforeseen()
                log.exception("call failed unexpectedly", call="ModelStreamInfer", request_id=unforeseen.request_id)
                journal.ended(unforeseen)
                reply.error_message = unforeseen.message
            yield reply.SerializeToString()

    async def _answer(self, sent: bytes, caller: Caller, arrived_s: float, beside: _Beside, journal: _Journal) -> Any:
        limits = self._plane.limits
        head, raw = codec.split(sent, limits)

        def decode() -> InferRequest:
            return codec.decode_request(
                *(head, raw),
                now_s=arrived_s,
                principal=caller.principal,
                trust_request_id=caller.trust_request_id,
                limits=limits,
            )

        request = await http_body.decoded(decode, {}, len(head))
        journal.model, journal.id = request.model, request.id
        if (deadline_s := beside.deadline_s) is not None:
            request = replace(request, deadline_s=min(deadline_s, request.deadline_s or deadline_s))
        if beside.trace is not None:
            request = replace(request, trace=beside.trace)
        response = await self._plane.infer(request)
        return codec.encode_response(request, response, http.class_labels(self._plane, request, response))

    def _server_metadata(self) -> Any:
        return _reply(
            "ServerMetadataResponse",
            name=self._plane.server_name,
            version=self._plane.server_version,
            extensions=self._plane.extensions,
        )

    async def _load(self, asked: Any) -> Any:
        extensions.check_load_parameters(asked.parameters)
        await self._plane.load(name := asked.model_name or asked.repository_name)
        return _reply("RepositoryModelLoadResponse", model_name=name, isLoaded=True)

    async def _unload(self, asked: Any) -> Any:
        await self._plane.unload(name := asked.model_name or asked.repository_name)
        return _reply("RepositoryModelUnloadResponse", model_name=name, isUnloaded=True)

    def _model_metadata(self, asked: Any) -> Any:
        found = self._plane.metadata(asked.name, asked.version)
        reply = _reply("ModelMetadataResponse", name=found.name, versions=found.versions, platform=found.platform)
        for specs, described in ((found.inputs, reply.inputs), (found.outputs, reply.outputs)):
            for spec in specs:
                _describe(spec, described.add())
        return reply


class _Beside(NamedTuple):
    """What a call says beside its message."""

    deadline_s: float | None
    trace: TraceContext | None


class _Journal:
    """How one inference ended, told once."""

    def __init__(
        self,
        record: Callable[[str, str, float, FirstlineError | None], None],
        clock: Clock,
        arrived_s: float,
        principal: str = "",
    ) -> None:
        self._record = record
        self._clock = clock
        self._arrived_s = arrived_s
        self.principal = principal
        self.model = ""
        self.id = ""

    def ended(self, error: FirstlineError | None) -> None:
        self._record(self.model, self.principal, self._clock.monotonic_s() - self._arrived_s, error)


def _followed(context: Context) -> TraceContext | None:
    """The trace that a request belongs to, which the lines about it name from now on."""
    trace = from_lines(context.invocation_metadata() or ())
    if trace is not None:
        logs.FACTS.set(trace.facts)  # until there is a request that says more
    return trace


def _reply(kind: str, /, **fields: object) -> Any:
    return message(kind)(**fields)


def _parsed(kind: str, value: dict[str, Any]) -> Any:
    return ParseDict(value, message(kind)())


def _describe(spec: TensorSpec, described: Any) -> None:
    described.name, described.datatype = spec.name, spec.datatype
    described.shape.extend(spec.shape)


async def _first(messages: Messages) -> bytes:
    """The one message of a call.

    Raises:
        InvalidTensorError: there is none.
        RemoteTimeoutError: it came too slowly.
    """
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await anext(messages)
    except StopAsyncIteration as error:
        raise InvalidTensorError("The call has no message; send one.") from error
    except TimeoutError as error:
        raise RemoteTimeoutError(f"The message did not come within {READ_TIMEOUT_S:g} seconds.") from error


async def _refuse(context: Context, error: FirstlineError) -> bytes:
    """Ends the call with an error's status, sentence and code."""
    try:
        await context.abort(status_of(error), error.message, trailers_of(error))
    except grpc.aio.InternalError as ended:  # by gRPC itself, which has said why, or by the client
        raise asyncio.CancelledError from ended
    return b""  # never reached: `abort` raises


def _unforeseen() -> FirstlineError:
    """What a client is told of a failure that nobody foresaw: the id under which the log has the reason."""
    request_id = new_request_id()
    error = FirstlineError(f"The server failed on this call; its log has the reason under {request_id}.")
    error.request_id = request_id
    return error
