"""What the heads of requests for inference say, known by their bytes; which may be is decided in `repeated_head`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from firstline_core.protocol.repeated_head import END_OF_HEAD, untraced
from firstline_core.telemetry.trace import with_tracestate
from firstline_core.types import TRACESTATE, TraceContext

if TYPE_CHECKING:
    from firstline_gateway.api.infer import Address

# How many heads a gateway knows, and how long they may be.
HEADS_KNOWN, _KNOWN_BYTES = 1024, 4096


class Head(Struct, frozen=True, eq=False):
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
        trace: that the request belongs to; all else is without it.
    """

    raw: bytes
    body_bytes: int
    url: bytes
    lines: list[tuple[bytes, bytes]]
    address: Address
    headers: Mapping[str, str]
    query_string: bytes
    shown: int
    trace: TraceContext | None = None


class Heads:
    """Those that a gateway knows, whichever connection they came on: many models are asked with as many heads."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, bytes], Head] = {}

    def find(self, serial: str, data: bytes) -> Head | None:
        """The head that data begins with; where it has a `trace`, it is `TRACED_BYTES` longer there than its `raw`.

        Args:
            serial: of the certificate that its connection has shown; "" without one.
            data: as it came; a message begins there.
        """
        end = data.find(END_OF_HEAD, 0, _KNOWN_BYTES) + len(END_OF_HEAD)
        if end < len(END_OF_HEAD):
            return None
        head = self._heads.get((serial, data[:end]))
        if head is not None or (found := untraced(data, end)) is None:
            return head
        raw, trace = found
        head = self._heads.get((serial, raw))
        if head is None:
            return None
        if TRACESTATE in head.headers:
            trace = with_tracestate(trace, head.headers[TRACESTATE])
        return replace(head, trace=trace)

    def keep(self, serial: str, head: Head) -> None:
        """Knows a head from now on, where its bytes may be known."""
        if not head.raw or len(head.raw) > _KNOWN_BYTES:
            return
        if len(self._heads) >= HEADS_KNOWN:
            del self._heads[next(iter(self._heads))]
        self._heads[serial, head.raw] = head
