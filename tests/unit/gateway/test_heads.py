from __future__ import annotations

from msgspec.structs import replace

from firstline_gateway.api.connection.heads import Head, Heads
from firstline_gateway.api.infer import address_of

PLAIN = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
LINES = [(b"host", b"x"), (b"content-length", b"5")]


def test_a_head_is_known_to_those_alone_who_show_the_same_certificate() -> None:
    address = address_of("/v2/models/m/infer")
    assert address is not None
    heads, head = Heads(), Head(PLAIN, 5, b"/v2/models/m/infer", LINES, address, {}, b"", 0)
    heads.keep("", head)
    assert heads.find("", PLAIN + b"12345") is head
    assert heads.find("7", PLAIN + b"12345") is None
    assert heads.find("", PLAIN.replace(b": 5", b": 6") + b"123456") is None
    assert heads.find("", PLAIN[:-2]) is None


def test_heads_that_may_mean_something_else_are_not_kept_and_the_oldest_make_room() -> None:
    address = address_of("/v2/models/m/infer")
    assert address is not None
    heads, plain = Heads(), Head(PLAIN, 5, b"/", LINES, address, {}, b"", 0)
    heads.keep("", replace(plain, raw=b""))
    assert heads.find("", b"\r\n\r\n") is None
    for number in range(2000):
        heads.keep(str(number), plain)
    assert heads.find("0", PLAIN) is None
    assert heads.find("1999", PLAIN) is plain
