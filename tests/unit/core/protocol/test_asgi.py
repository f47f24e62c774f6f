"""What of a request is read, and up to which limits."""

import asyncio

import pytest

from firstline_core.errors import PayloadTooLargeError, RequestError
from firstline_core.protocol.asgi import (
    QUERY_FIELDS,
    STATE_KEY,
    ClientDisconnectedError,
    Message,
    Request,
    RequestInfo,
    query_parameters,
)
from firstline_core.protocol.limits import Limits

SMALL = Limits(body_bytes=10)


def request_of(*parts: bytes, whole: bool = False, ends: bool = True) -> Request:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    for number, part in enumerate(parts, 1):
        more = not ends or number < len(parts)
        messages.put_nowait({"type": "http.request", "body": part, "more_body": more})
    messages.put_nowait({"type": "http.disconnect"})
    info = RequestInfo(0.0)
    info.whole = whole
    scope = {"method": "POST", "path": "/", "headers": [], "query_string": b"", "state": {STATE_KEY: info}}
    return Request(scope, messages.get)


def test_the_parameters_of_a_query_are_limited() -> None:
    most = b"&".join(b"a%d=1" % number for number in range(QUERY_FIELDS))
    assert len(query_parameters(most)) == QUERY_FIELDS
    with pytest.raises(RequestError, match="more than 256 parameters"):
        query_parameters(most + b"&b=1")
    with pytest.raises(RequestError, match="'a' has the character NUL"):
        query_parameters(b"a=%00")


@pytest.mark.parametrize("whole", [True, False])
async def test_a_body_is_read_up_to_its_limit(whole: bool) -> None:
    reserved = list[int]()
    parts = [b"0123456789"] if whole else [b"01234", b"", b"56789"]
    assert await request_of(*parts, whole=whole).body(SMALL, reserved.append) == b"0123456789"
    assert sum(reserved) == 10
    with pytest.raises(PayloadTooLargeError, match="larger than 10 bytes"):
        await request_of(*parts[:-1], parts[-1] + b"x", whole=whole).body(SMALL, reserved.append)
    assert sum(reserved) == (10 if whole else 15), "nothing is reserved for what is refused"


async def test_a_body_that_the_client_ends_early_is_not_used() -> None:
    with pytest.raises(ClientDisconnectedError):
        await request_of(b"01234", ends=False).body(SMALL)
