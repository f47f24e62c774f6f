"""Requests like those before, for a small model: answered without finding out again what is known of them.

What is left for each request (`courses.py` has the rest) is what has to be judged each time: whether the key still
holds and is not used too often, whether there is room for the body and in the batch, the deadline, the numbers. Nothing
waits here, so there is neither a coroutine nor a task: the batch, at the end of the loop's turn, tells each request its
outcome.

Whatever is out of the ordinary goes the long way (`exchange.py`), as if nobody had looked at it here: `begin` either
has a request under way, or has taken nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstline_core.errors import FirstlineError
from firstline_core.protocol.oip import repeated_request
from firstline_gateway.api.connection.courses import Courses, UnknownHeadError
from firstline_gateway.api.connection.fast_exchange import FastExchange
from firstline_gateway.api.connection.heads import Head
from firstline_gateway.gateway import Gateway

if TYPE_CHECKING:
    from firstline_gateway.api.connection.inference_protocol import InferenceProtocol


class FastPath:
    """Belongs to a gateway, and to its event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._gatekeeper = gateway.identity.gatekeeper
        self._courses = Courses(gateway)

    def begin(self, protocol: InferenceProtocol, head: Head, body: bytes) -> FastExchange | None:
        """Has a request under way, or answered already; None where it has to go the long way.

        Args:
            protocol: its connection, on which no other request is under way.
            head: known by its bytes.
            body: all of it.
        """
        course = self._courses.find(head)
        if course is None or protocol.flow.write_paused or protocol.presented is not None:
            return None
        key = course.key
        if key is not None and self._gatekeeper.lately(course.key_text) is not key:
            self._courses.forget(head)
            return None
        gateway, caller, now_s = self._gateway, course.caller, self._gateway.clock.monotonic_s()
        try:
            known, asked = self._courses.asked(head, course, body)
            request = repeated_request(
                *(head.address.model, known.plan, asked, body, course.header_length or 0),
                version=head.address.version,
                now_s=now_s,
                principal=caller.principal,
                trace=head.trace,
            )
            gateway.bodies.take(caller.principal, len(body))
        except (FirstlineError, UnknownHeadError):
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
        if gateway.answering.begin(course.place, request, now_s, exchange):
            return exchange
        gateway.bodies.give_back(caller.principal, len(body))
        if key is not None:
            self._gatekeeper.give_back(key)
        return None
