"""When the bytes of a request's head may be taken to say the same again.

A client sends one head with all its requests: address, key and headers are the same, and of a model's inputs so is the
length. Between two messages a parser has no memory, so bytes that were a whole head once are that again, with nothing
left to find out. Which heads that holds for is decided narrowly: the length of the body has to be in the head, once,
and nothing may ask for more than an answer.

One line is another each time, `traceparent`: a head is known by its bytes without it.
"""

from __future__ import annotations

import re

from firstline_core.telemetry.trace import child
from firstline_core.types import TRACEPARENT, TRACESTATE, TraceContext

END_OF_HEAD = b"\r\n\r\n"
# Of these none may be there: they say how the body is to be read, or what to do first.
_SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"connection", b"te", b"trailer"})
_DIGITS = 9
_TRACEPARENT = TRACEPARENT.encode()
_TRACE = (_TRACEPARENT, TRACESTATE.encode())
# As it is nearly always written, and whole lines of those alone: what is between two others changes neither.
_TRACED = re.compile(rb"\r\n[Tt]raceparent: 00-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?=\r\n)")
TRACED_BYTES = len(b"\r\nTraceparent: ") + 55


def untraced(data: bytes, end: int) -> tuple[bytes, TraceContext] | None:
    """The head that ends there without the line of its trace, `TRACED_BYTES` shorter, and the request's place in that.

    None where it has none, or one that is written in another way.
    """
    found = _TRACED.search(data, 0, end)
    if found is None:
        return None
    start, stop = found.span()
    said = found[1].decode("ascii")
    return data[:start] + data[stop:end], child(said[:32], said[33:49], int(said[50:], 16))


def repeatable(data: bytes, lines: list[tuple[bytes, bytes]], limit_bytes: int) -> tuple[bytes, int]:
    """The bytes of a head that was just parsed, and the length of its body; b"" and 0 where they are not to be known.

    They are without `traceparent`: see `untraced`.

    Args:
        data: that the head was parsed from, of an HTTP/1.1 connection that stays open; it begins with the message.
        lines: the headers that were found, by lowered names.
        limit_bytes: of a body; longer ones are for those who refuse them.
    """
    end = data.find(END_OF_HEAD)
    if end < 0 or not data.startswith(b"POST "):
        return b"", 0
    raw = data[: end + len(END_OF_HEAD)]
    # A parser that takes bare line feeds would have seen another end.
    if raw.count(b"\n") != raw.count(b"\r\n") or raw.count(b"\r\n") != len(lines) + 2:
        return b"", 0
    if b"\n " in raw or b"\n\t" in raw:  # a line that goes on
        return b"", 0
    lengths = [value for name, value in lines if name == b"content-length"]
    if len(lengths) != 1 or any(name in _SPECIAL for name, _ in lines):
        return b"", 0
    if not lengths[0].isdigit() or len(lengths[0]) > _DIGITS or not 0 < int(lengths[0]) <= limit_bytes:
        return b"", 0
    traced = [name for name, _ in lines if name in _TRACE]
    if len(set(traced)) != len(traced):
        return b"", 0
    if _TRACEPARENT in traced:
        found = untraced(raw, len(raw))
        if found is None:
            return b"", 0
        raw = found[0]
    return raw, int(lengths[0])
