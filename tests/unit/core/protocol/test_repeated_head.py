from __future__ import annotations

import pytest

from firstline_core.protocol.repeated_head import repeatable

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
