"""One request on the fast path: its reply, written by the form of those before, and its line in the log."""

from __future__ import annotations

from contextvars import copy_context
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from firstline_core.errors import FirstlineError, LinkDownError
from firstline_core.protocol import reply_form
from firstline_core.protocol.http import Reply, encoded_response, headers_for
from firstline_core.protocol.oip import Encoded
from firstline_core.telemetry import logs
from firstline_core.types import InferRequest
from firstline_gateway.api import infer
from firstline_gateway.api.connection.courses import Course, Known
from firstline_gateway.api.connection.cycle import Cycle, lines_of
from firstline_gateway.api.connection.heads import Head
from firstline_gateway.executors.base import Probabilities
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.principals import device_of
from firstline_gateway.serving.answering import facts_of
from firstline_gateway.telemetry.journal import record

if TYPE_CHECKING:
    from firstline_gateway.api.connection.inference_protocol import InferenceProtocol

_OK = STATUS_LINE[200]


class FastExchange(Cycle):
    """One request on the fast path; the batch tells it its outcome, as if it were a future."""

    __slots__ = ("_body_bytes", "_course", "_known", "_request", "_started_s")

    def __init__(
        self,
        protocol: InferenceProtocol,
        gateway: Gateway,
        head: Head,
        *,
        course: Course,
        known: Known,
        request: InferRequest,
        body_bytes: int,
        started_s: float,
    ) -> None:
        super().__init__(protocol, gateway, head, keep_alive=True)
        self._course = course
        self._known = known
        self._request: InferRequest | None = request
        self._body_bytes = body_bytes
        self._started_s = started_s

    def done(self) -> bool:
        """Whether it was answered, or its client has left."""
        return self._request is None

    def set_result(self, result: Probabilities) -> None:
        """Answers with what the model says."""
        known, request, answering = self._known, self._request, self.gateway.answering
        assert request is not None  # noqa: S101 (see `done`)
        seconds = self.gateway.clock.monotonic_s() - self._started_s
        ms = round(seconds * 1000, 3)
        try:
            encoded = None
            if known.form is not None:
                encoded = reply_form.fill(known.form, request.id, request.request_id, ms, result)
            if encoded is not None:
                answering.count(self._course.place, seconds)
            else:
                encoded = self._anew(request, result, seconds)
        except FirstlineError as error:  # what it asks for cannot be said
            copy_context().run(self._refuse, error, ran=True)
            return
        except Exception as error:  # noqa: BLE001 (the outermost loop of a request)
            self._let_go()
            self.send(self.unforeseen(error))
            return
        trace = request.trace
        if trace is None:
            known.line.write({"request_id": request.request_id, "ms": ms})
        else:  # as `TraceContext.facts` has it
            traced = {"trace_id": trace.trace_id, "span_id": trace.span_id}
            known.traced_line.write({"request_id": request.request_id, "ms": ms, **traced})
        self._let_go()
        if self.keep_alive and not answering.draining:
            self.send_lines(_OK, _lines_for(encoded.header_length), encoded.body)
        else:
            self.send(self._closing(Reply(200, headers_for(encoded), encoded.body)))

    def _anew(self, request: InferRequest, probabilities: Probabilities, seconds: float) -> Encoded:
        response = self.gateway.answering.answered(request, self._course.place.served, probabilities, seconds)
        encoded = encoded_response(self.gateway.plane, request, response)
        if device_of(request.principal) is None:  # what devices are told of their contract changes
            kind = reply_form.kind_of(request, response)
            self._known.form = reply_form.form_of(kind) if kind is not None else None
        return encoded

    def set_exception(self, exception: BaseException) -> None:
        """Answers that there is no answer, and why."""
        copy_context().run(self._refuse, exception)

    def lost(self) -> None:
        self.disconnected = True
        if self._request is not None:
            left = LinkDownError("The client closed the connection before it was answered.")
            copy_context().run(self._refuse, left)

    def _refuse(self, exception: BaseException, *, ran: bool = False) -> None:
        """Says why there is no answer; the model's own was counted where it `ran`."""
        request, gateway = self._request, self.gateway
        assert request is not None  # noqa: S101 (see `done`)
        logs.FACTS.set(partial(facts_of, request))
        seconds = gateway.clock.monotonic_s() - self._started_s
        if isinstance(exception, FirstlineError):
            if not (self.disconnected or ran):
                gateway.answering.failed(self._course.place, seconds)
            self._let_go()
            reply = self._closing(infer.refusal(gateway, self.head.shown, exception))
            record(
                gateway.metrics,
                transport="http",
                model=self.head.address.model,
                principal=request.principal,
                seconds=seconds,
                error=exception,
            )
        else:
            self._let_go()
            reply = self.unforeseen(exception)
        self.send(reply)

    def _closing(self, reply: Reply) -> Reply:
        if self.gateway.answering.draining:
            reply.headers["Connection"] = "close"  # as `infer.answer` does
        return reply

    def _let_go(self) -> None:
        """Gives back what it held: the connection keeps this until its next request, which may be never."""
        request, self._request = self._request, None
        if request is not None:
            self.gateway.bodies.give_back(request.principal, self._body_bytes)
            self.gateway.answering.end(self._course.place)


@lru_cache(256)
def _lines_for(header_length: int | None) -> bytes:
    return lines_of(*headers_for(Encoded(b"", header_length)).items())
