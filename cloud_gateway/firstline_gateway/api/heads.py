"""What the head of a request for inference says, and when the same bytes may be taken to say the same again.

A client sends one head with all its requests: address, key and headers are the same, and of a model's inputs so is the
length. Between two messages a parser has no memory, so bytes that were a whole head once are that again, with nothing
left to find out. Which heads that holds for is decided narrowly: the length of the body has to be in the head, once,
and nothing may ask for more than an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from firstline_gateway.api.infer import Address

_END = b"\r\n\r\n"
# Of these none may be there: they say how the body is to be read, or what to do first.
_SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"connection", b"te", b"trailer"})
_DIGITS = 9
# How many heads a gateway knows, and how long they may be.
_HEADS, _KNOWN_BYTES = 1024, 4096


class Head(NamedTuple):
    """What the head of a request for inference says.

    Args:
        raw: its bytes, with the empty line; b"" where they may mean something else the next time.
        body_bytes: of the body, where `raw` is known.
        url: as it was sent.
        lines: its headers, by lowered names, in their order.
        address: what it asks of whom.
        headers: the lines as text; of a name that is there twice the first counts.
        query_string: of the URL.
        shown: a mark of who asks (`unread.py`).
    """

    raw: bytes
    body_bytes: int
    url: bytes
    lines: list[tuple[bytes, bytes]]
    address: Address
    headers: Mapping[str, str]
    query_string: bytes
    shown: int


def repeatable(data: bytes, lines: list[tuple[bytes, bytes]], limit_bytes: int) -> tuple[bytes, int]:
    """The bytes of a head that was just parsed, and the length of its body; b"" and 0 where they are not to be known.

    Args:
        data: that the head was parsed from, of an HTTP/1.1 connection that stays open; it begins with the message.
        lines: the headers that were found.
        limit_bytes: of a body; longer ones are for those who refuse them.
    """
    end = data.find(_END)
    if end < 0 or not data.startswith(b"POST "):
        return b"", 0
    raw = data[: end + len(_END)]
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
    return raw, int(lengths[0])


class Heads:
    """Those that a gateway knows, whichever connection they came on: many models are asked with as many heads."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, bytes], Head] = {}

    def find(self, serial: str, data: bytes) -> Head | None:
        """The head that data begins with.

        Args:
            serial: of the certificate that its connection has shown; "" without one.
            data: as it came; a message begins there.
        """
        end = data.find(_END, 0, _KNOWN_BYTES)
        return None if end < 0 else self._heads.get((serial, data[: end + len(_END)]))

    def keep(self, serial: str, head: Head) -> None:
        """Knows a head from now on, where its bytes may be known."""
        if not head.raw or len(head.raw) > _KNOWN_BYTES:
            return
        if len(self._heads) >= _HEADS:
            del self._heads[next(iter(self._heads))]
        self._heads[serial, head.raw] = head
