"""An answer as server-sent events: what stands now, then its last word.

The ids are the same for every answer and whoever asks: 1 is what is provisional, 2 the last word. So a client that
comes back with `Last-Event-ID`, also to a server that was restarted, misses nothing and hears nothing twice.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections.abc import Mapping

from firstline_core.errors import RequestError
from firstline_core.protocol.http_errors import header
from firstline_core.protocol.tensors import shown

EVENT_STREAM_TYPE = "text/event-stream"
PROVISIONAL_ID, LAST_ID = 1, 2
HEARTBEAT = b":\n\n"
# A proxy that gathers what it passes on would hold back the last word.
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def last_event_id(headers: Mapping[str, str]) -> int:
    """The id of the last event that a caller has seen; 0 for none.

    Raises:
        RequestError: no event ever had it.
    """
    said = header(headers, "Last-Event-ID") or "0"
    if said not in ("0", str(PROVISIONAL_ID), str(LAST_ID)):
        raise RequestError(
            f"Last-Event-ID is {shown(said)}; events have the ids {PROVISIONAL_ID} and {LAST_ID}. Leave the header out "
            "to start from the beginning."
        )
    return int(said)


def event(event_id: int, data: bytes) -> bytes:
    """One event, of JSON as it is written here: without line breaks."""
    return b"id: %d\ndata: %b\n\n" % (event_id, data)
