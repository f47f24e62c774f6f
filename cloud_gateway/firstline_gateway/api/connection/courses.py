"""What heads of requests like those before come to, so that nothing of it is found out again.

Who asks, of which model, what the V2 head says, how the reply and the log's line look: for the same bytes all of that
is the same, until keys or models change. So it is found out once: a `Course` for each HTTP head, with a `Known` for
each V2 head that came with it.
"""

from __future__ import annotations

from firstline_core.errors import FirstlineError
from firstline_core.protocol import repeated
from firstline_core.protocol.http_body import body_form, is_soon_read
from firstline_core.protocol.repeated import Asked, Plan
from firstline_core.protocol.reply_form import Form
from firstline_core.telemetry import logs
from firstline_gateway.api import infer
from firstline_gateway.api.auth import Caller, caller_by, key_text
from firstline_gateway.api.connection.heads import HEADS_KNOWN, Head
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.known import ApiKey
from firstline_gateway.models.residency.memory import Place
from firstline_gateway.serving.checks import check
from firstline_gateway.telemetry.journal import answered_form

# V2 heads of one HTTP head, and so of one length; and of all, up to some 10 KB each.
_KNOWN, _KNOWN_OF_ALL = 64, 4096


class Known:
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


class Course:
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
        self.known: dict[bytes | tuple[bytes, bool], Known] = {}


class Courses:
    """Belongs to a gateway, and to its event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._identity = gateway.identity
        self._gatekeeper = gateway.identity.gatekeeper
        self._repository = gateway.repository
        self._models = gateway.repository.models  # that the courses lead to
        self._courses: dict[bytes, Course | None] = {}
        self._learned = 0  # V2 heads, since the courses were all forgotten

    def find(self, head: Head) -> Course | None:
        """The course of a head; None where it has none, for the time being or for good."""
        if self._models is not self._repository.models:
            self._models = self._repository.models
            self._courses.clear()
        return self._courses[head.raw] if head.raw in self._courses else self._learn(head)

    def forget(self, head: Head) -> None:
        """Its key holds no more."""
        del self._courses[head.raw]

    def _learn(self, head: Head) -> Course | None:
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
            place = self._gateway.answering.resident(head.address.model, head.address.version)
        except FirstlineError:
            return None
        if place is None or "infer" not in caller.scopes:
            return None
        if len(self._courses) >= HEADS_KNOWN:
            del self._courses[next(iter(self._courses))]
        course = self._courses[head.raw] = Course(text, key, caller, place, form.header_length)
        return course

    def asked(self, head: Head, course: Course, body: bytes) -> tuple[Known, Asked]:
        """What the V2 head of a body comes to, and as it is looked up.

        Raises:
            UnknownHeadError: it has not come before.
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
            raise UnknownHeadError
        known = course.known.get(asked.key)
        if known is not None:
            return known, asked
        limits = self._gateway.plane.limits
        tail_bytes = repeated.AS_JSON if length is None else len(body) - length
        if length is None and len(body) > limits.json_bytes:
            raise UnknownHeadError
        plan = repeated.PLANS.find(asked, tail_bytes, limits)
        if plan is None or plan.request.promised:
            raise UnknownHeadError
        check(plan.request, course.place.served)
        said = (head.address.model, course.caller.principal, plan.request.rows)
        stays = length is not None and asked.key[0] == asked.head
        known = Known(plan, asked if stays else None, answered_form(*said), answered_form(*said, traced=True))
        if len(course.known) >= _KNOWN:
            course.known.clear()
        course.known[asked.head if stays else asked.key] = known
        self._learned += 1
        if self._learned >= _KNOWN_OF_ALL:
            self._learned = 0
            self._courses.clear()
        return known, asked


class UnknownHeadError(Exception):
    """A V2 head has not come before, or is none that is known again."""
