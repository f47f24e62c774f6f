"""The endpoint behind `edge-agent purge`: erases data for a caller that proves access to the state directory."""

from __future__ import annotations

import msgspec

from firstline_core.errors import RequestError
from firstline_core.protocol import http
from firstline_core.protocol.asgi import Request
from firstline_core.protocol.http import Reply
from firstline_core.protocol.limits import Limits
from firstline_edge.api.erasure import Erasure

_LIMITS = Limits(body_bytes=4096)


class _PurgeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places to erase, and the content of the proof file that the caller has just written."""

    places: list[str]
    proof: str


async def purge_reply(erasure: Erasure, request: Request) -> Reply:
    """Erases the places that the body names, and returns their names.

    Raises:
        RequestError: the body is not valid, or names an unknown place.
        ForbiddenError: the caller has not proved that it may erase.
        CapacityError: the disk refuses.
    """
    body = await request.body(_LIMITS)
    try:
        purge = msgspec.json.decode(body, type=_PurgeRequest)
    except msgspec.MsgspecError as error:
        raise RequestError(f"The body is not a valid purge request: {error}.") from error
    erasure.check(purge.proof)
    await erasure.erase(purge.places)
    return http.json_reply({"erased": purge.places})
