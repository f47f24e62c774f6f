"""Requests like those before, for a small model: answered without finding out again what is known of them.

Who asks, of which model, what the V2 head says, how the reply and the log's line look: for the same bytes all of that
is the same, until keys or models change. So it is found out once (`_Course`, `_Known`), and what is left for each
request is what has to be judged each time: whether the key still holds and is not used too often, whether there is
room for the body and in the batch, the deadline, the numbers. Nothing waits here, so there is neither a coroutine nor
a task: the batch, at the end of the loop's turn, tells each request its outcome.

Whatever is out of the ordinary goes the long way (`exchange.py`), as if nobody had looked at it here: `begin` either
has a request under way, or has taken nothing.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from firstline_core.errors import FirstlineError, LinkDownError
from firstline_core.protocol import repeated, reply_form
from firstline_core.protocol.http import Reply, encoded_response, headers_for
from firstline_core.protocol.http_body import body_form, is_soon_read
from firstline_core.protocol.oip import Encoded, repeated_request
from firstline_core.protocol.repeated import Asked, Plan
from firstline_core.protocol.reply_form import Form
from firstline_core.telemetry import logs
from firstline_core.types import InferRequest
from firstline_gateway.api import infer
from firstline_gateway.api.auth import Caller, caller_by, key_text
from firstline_gateway.api.cycle import Cycle, lines_of
from firstline_gateway.api.heads import HEADS_KNOWN, Head
from firstline_gateway.checks import check
from firstline_gateway.dataplane import facts_of
from firstline_gateway.executors.base import Probabilities
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.known import ApiKey
from firstline_gateway.journal import answered_form, record
from firstline_gateway.principals import device_of
from firstline_gateway.residency.memory import Place

if TYPE_CHECKING:
    from firstline_gateway.api.http_protocol import HttpProtocol

_OK = STATUS_LINE[200]
# V2 heads of one HTTP head, and so of one length; and of all, up to some 10 KB each.
_KNOWN, _KNOWN_OF_ALL = 64, 4096


class _Known:
    """What a V2 head comes to, for one caller and one model.

    Attributes:
        plan: what it means.
        asked: as it is looked up, where nothing in it changes; else None.
        line: of the log.
        traced_line: the same of a request with a trace.
        form: of the reply; None until one was written that others are like.
    """

    __slots__ = ("asked", "form", "line", "plan", "traced_line")

    def __init__(self, plan: Plan, asked: Asked | None, line: logs.LineForm, traced_line: logs.LineForm) -> None:
        self.plan = plan
        self.asked = asked
        self.line = line
        self.traced_line = traced_line
        self.form: Form | None = None


class _Course:
    """What an HTTP head comes to, as long as its key holds and its model stays.

    Attributes:
        key_text: of the API key; "" where none is needed.
        key: that it was.
        caller: whom it stands for.
        place: of the model.
        header_length: of the V2 head; None where the body is all JSON.
        known: V2 heads, by their bytes where nothing changes in them, and as they are looked up.
    """

    __slots__ = ("caller", "header_length", "key", "key_text", "known", "place")

    def __init__(
        self, key_text: str, key: ApiKey | None, caller: Caller, place: Place, header_length: int | None
    ) -> None:
        self.key_text = key_text
        self.key = key
        self.caller = caller
        self.place = place
        self.header_length = header_length
        self.known: dict[bytes | tuple[bytes, bool], _Known] = {}


class FastPath:
    """Belongs to a gateway, and to its event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._identity = gateway.identity
        self._gatekeeper = gateway.identity.gatekeeper
        self._repository = gateway.repository
        self._models = gateway.repository.models  # that the courses lead to
        self._courses: dict[bytes, _Course | None] = {}
        self._learned = 0  # V2 heads, since the courses were all forgotten

    def begin(self, protocol: HttpProtocol, head: Head, body: bytes) -> FastExchange | None:
        """Has a request under way, or answered already; None where it has to go the long way.

        Args:
            protocol: its connection, on which no other request is under way.
            head: known by its bytes.
            body: all of it.
        """
        if self._models is not self._repository.models:
            self._models = self._repository.models
            self._courses.clear()
        course = self._courses[head.raw] if head.raw in self._courses else self._learn(head)
        if course is None or protocol.flow.write_paused or protocol.presented is not None:
            return None
        key = course.key
        if key is not None and self._gatekeeper.lately(course.key_text) is not key:
            del self._courses[head.raw]
            return None
        gateway, caller, now_s = self._gateway, course.caller, self._gateway.clock.monotonic_s()
        try:
            known, asked = self._asked(head, course, body)
            request = repeated_request(
                *(head.address.model, known.plan, asked, body, course.header_length or 0),
                version=head.address.version,
                now_s=now_s,
                principal=caller.principal,
                trace=head.trace,
            )
            gateway.bodies.take(caller.principal, len(body))
        except (FirstlineError, _UnknownError):
            return None
        if key is not None and self._gatekeeper.wait_s(key):
            gateway.bodies.give_back(caller.principal, len(body))
            return None
        exchange = FastExchange(
            *(protocol, gateway, head),
            course=course,
            known=known,
            request=request,
            body_bytes=len(body),
            started_s=now_s,
        )
        if gateway.plane.begin(course.place, request, now_s, exchange):
            return exchange
        gateway.bodies.give_back(caller.principal, len(body))
        if key is not None:
            self._gatekeeper.give_back(key)
        return None

    def _learn(self, head: Head) -> _Course | None:
        """The course of a head; None where it has none, for the time being or for good."""
        try:
            form = body_form(head.headers)
        except FirstlineError:
            return None
        plain = head.address.endpoint is infer.v2 and "prefer" not in head.headers and not self._identity.proxy_header
        if not plain or not is_soon_read(form, head.body_bytes):
            return None
        text = key_text(head.headers.get("authorization", ""))
        key = self._gatekeeper.lately(text) if self._identity.required and text else None
        if self._identity.required and key is None:
            return None  # it is looked for, and known the next time
        caller = caller_by(key)
        try:
            place = self._gateway.plane.resident(head.address.model, head.address.version)
        except FirstlineError:
            return None
        if place is None or "infer" not in caller.scopes:
            return None
        if len(self._courses) >= HEADS_KNOWN:
            del self._courses[next(iter(self._courses))]
        course = self._courses[head.raw] = _Course(text, key, caller, place, form.header_length)
        return course

    def _asked(self, head: Head, course: _Course, body: bytes) -> tuple[_Known, Asked]:
        """What the V2 head of a body comes to, and as it is looked up.

        Raises:
            _UnknownError: it has not come before.
            RequestError: it makes no sense for this model.
        """
        length, trusted = course.header_length, course.caller.trust_request_id
        if length is not None:
            known = course.known.get(body[:length])
            if known is not None and known.asked is not None:
                return known, known.asked
            asked = repeated.looked_up(body, length, trusted=trusted)
        else:
            asked = repeated.looked_up_json(body, trusted=trusted)
        if asked is None:
            raise _UnknownError
        known = course.known.get(asked.key)
        if known is not None:
            return known, asked
        limits = self._gateway.plane.limits
        tail_bytes = repeated.AS_JSON if length is None else len(body) - length
        if length is None and len(body) > limits.json_bytes:
            raise _UnknownError
        plan = repeated.PLANS.find(asked, tail_bytes, limits)
        if plan is None or plan.request.promised:
            raise _UnknownError
        check(plan.request, course.place.served)
        said = (head.address.model, course.caller.principal, plan.request.rows)
        stays = length is not None and asked.key[0] == asked.head
        known = _Known(plan, asked if stays else None, answered_form(*said), answered_form(*said, traced=True))
        if len(course.known) >= _KNOWN:
            course.known.clear()
        course.known[asked.head if stays else asked.key] = known
        self._learned += 1
        if self._learned >= _KNOWN_OF_ALL:
            self._learned = 0
            self._courses.clear()
        return known, asked


class _UnknownError(Exception):
    """A V2 head has not come before, or is none that is known again."""


class FastExchange(Cycle):
    """One request on the fast path; the batch tells it its outcome, as if it were a future."""

    __slots__ = ("_body_bytes", "_course", "_known", "_request", "_started_s")

    def __init__(
        self,
        protocol: HttpProtocol,
        gateway: Gateway,
        head: Head,
        *,
        course: _Course,
        known: _Known,
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
        known, request, plane = self._known, self._request, self.gateway.plane
        assert request is not None  # noqa: S101 (see `done`)
        seconds = self.gateway.clock.monotonic_s() - self._started_s
        ms = round(seconds * 1000, 3)
        try:
            encoded = None
            if known.form is not None:
                encoded = reply_form.fill(known.form, request.id, request.request_id, ms, result)
            if encoded is not None:
                plane.count(self._course.place, seconds)
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
        if self.keep_alive and not plane.draining:
            self.send_lines(_OK, _lines_for(encoded.header_length), encoded.body)
        else:
            self.send(self._closing(Reply(200, headers_for(encoded), encoded.body)))

    def _anew(self, request: InferRequest, probabilities: Probabilities, seconds: float) -> Encoded:
        response = self.gateway.plane.answered(request, self._course.place.served, probabilities, seconds)
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
                gateway.plane.failed(self._course.place, seconds)
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
        if self.gateway.plane.draining:
            reply.headers["Connection"] = "close"  # as `infer.answer` does
        return reply

    def _let_go(self) -> None:
        """Gives back what it held: the connection keeps this until its next request, which may be never."""
        request, self._request = self._request, None
        if request is not None:
            self.gateway.bodies.give_back(request.principal, self._body_bytes)
            self.gateway.plane.end(self._course.place)


@lru_cache(256)
def _lines_for(header_length: int | None) -> bytes:
    return lines_of(*headers_for(Encoded(b"", header_length)).items())
