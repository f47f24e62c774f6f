"""Reads server-sent events of a Firstline tier from pieces of any size. No I/O.

The reader is strict: a malformed stream is an error, not an answer that never arrives.
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.errors import ProtocolError
from firstline_core.protocol.limits import DEFAULT_LIMITS

_END = b"\n\n"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: a number that increases within a stream, and its data."""

    id: int
    data: bytes


class EventReader:
    """Assembles the pieces of one stream.

    Args:
        limit_bytes: the largest event.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMITS.body_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()

    def read(self, piece: bytes) -> list[Event]:
        """Returns the events that this piece completes.

        Raises:
            ProtocolError: an event is malformed, or over the limit.
        """
        searched = max(0, len(self._held) - 1)  # an end may lie across two pieces
        self._held += piece
        found: list[Event] = []
        start = 0
        while (end := self._held.find(_END, max(start, searched))) >= 0:
            event = _event(bytes(self._held[start:end]))
            if event is not None:
                found.append(event)
            start = end + len(_END)
        del self._held[:start]
        if len(self._held) > self._limit_bytes:
            raise ProtocolError(f"An event is larger than {self._limit_bytes} bytes, the most that is read.")
        return found


def _event(block: bytes) -> Event | None:
    """Reads the lines of one block; returns None for a comment, which only keeps the stream alive."""
    fields = {b"id": b"", b"data": b""}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name in fields:
            fields[name] += value.removeprefix(b" ")
        elif name:  # a comment has none
            raise ProtocolError(f"The event stream has a field {name[:40]!r}, which no Firstline server writes.")
    if not fields[b"data"]:
        return None
    if not fields[b"id"].isdigit() or len(fields[b"id"]) > 18:
        raise ProtocolError(f"The event stream has an event with the id {fields[b'id'][:40]!r}; a number is expected.")
    return Event(int(fields[b"id"]), fields[b"data"])
