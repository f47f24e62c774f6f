from __future__ import annotations

import pytest

from firstline_gateway.api.heads import Head, Heads, repeatable
from firstline_gateway.api.infer import address_of

PLAIN = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


def lines_of(head: bytes) -> list[tuple[bytes, bytes]]:
    found = [line.partition(b":") for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
    return [(name.lower(), value.strip()) for name, _, value in found]


def test_a_plain_head_is_known_with_the_length_of_its_body() -> None:
    assert repeatable(PLAIN + b"12345", lines_of(PLAIN), 100) == (PLAIN, 5)


@pytest.mark.parametrize(
    "head",
    [
        PLAIN.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        PLAIN.replace(b"Host: x", b"Transfer-Encoding: chunked"),
        PLAIN.replace(b"Host: x", b"Expect: 100-continue"),
        PLAIN.replace(b"Host: x", b"Connection: close"),
        PLAIN.replace(b"Host: x", b"Upgrade: h2c"),
        PLAIN.replace(b"Host: x", b"Content-Length: 5"),
        PLAIN.replace(b": 5", b": 101"),
        PLAIN.replace(b": 5", b": 0"),
        PLAIN.replace(b": 5", b": 0x5"),
        PLAIN.replace(b"Host: x", b"Host: x\r\n y"),
        b"\r\n" + PLAIN,
        PLAIN.replace(b"Host: x\r\n", b"Host: x\n"),
        PLAIN[:-2],
    ],
)
def test_a_head_that_may_mean_something_else_is_parsed_each_time(head: bytes) -> None:
    assert repeatable(head, lines_of(head), 100) == (b"", 0)


def test_a_head_is_known_to_those_alone_who_show_the_same_certificate() -> None:
    address = address_of("/v2/models/m/infer")
    assert address is not None
    heads, head = Heads(), Head(PLAIN, 5, b"/v2/models/m/infer", lines_of(PLAIN), address, {}, b"", 0)
    heads.keep("", head)
    assert heads.find("", PLAIN + b"12345") is head
    assert heads.find("7", PLAIN + b"12345") is None
    assert heads.find("", PLAIN.replace(b": 5", b": 6") + b"123456") is None
    assert heads.find("", PLAIN[:-2]) is None


def test_heads_that_may_mean_something_else_are_not_kept_and_the_oldest_make_room() -> None:
    address = address_of("/v2/models/m/infer")
    assert address is not None
    heads, plain = Heads(), Head(PLAIN, 5, b"/", lines_of(PLAIN), address, {}, b"", 0)
    heads.keep("", plain._replace(raw=b""))
    assert heads.find("", b"\r\n\r\n") is None
    for number in range(2000):
        heads.keep(str(number), plain)
    assert heads.find("0", PLAIN) is None
    assert heads.find("1999", PLAIN) is plain
