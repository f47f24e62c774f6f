"""Erasing over the API, for `edge-agent purge`: by whoever shows that it may write in the state directory."""

from __future__ import annotations

import msgspec

from firstline_core.errors import RequestError
from firstline_core.protocol import http
from firstline_core.protocol.asgi import Request
from firstline_core.protocol.http import Reply
from firstline_core.protocol.limits import Limits
from firstline_edge.api.erasure import Erasure

_LIMITS = Limits(body_bytes=4096)


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be erased, and what the caller has just written beside it."""

    places: list[str]
    proof: str


async def purge_reply(erasure: Erasure, request: Request) -> Reply:
    """Erases, and says what.

    Raises:
        RequestError: the body is no order, or names what there is not.
        ForbiddenError: the caller has not shown who it is.
        CapacityError: the disk refuses.
    """
    body = await request.body(_LIMITS)
    try:
        order = msgspec.json.decode(body, type=_Order)
    except msgspec.MsgspecError as error:
        raise RequestError(f"The body is no order to purge: {error}.") from error
    erasure.check(order.proof)
    await erasure.erase(order.places)
    return http.json_reply({"erased": order.places})
