"""An answer as server-sent events: the provisional answer, then the final one.

The ids are the same for every answer: 1 for the provisional, 2 for the final one. So a client that reconnects with
`Last-Event-ID`, even after a restart of the server, gets each event once.
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
# A buffering proxy would delay the final answer.
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def last_event_id(headers: Mapping[str, str]) -> int:
    """Returns the id of the last event that a caller has seen; 0 for none.

    Raises:
        RequestError: the id does not exist.
    """
    said = header(headers, "Last-Event-ID") or "0"
    if said not in ("0", str(PROVISIONAL_ID), str(LAST_ID)):
        raise RequestError(
            f"Last-Event-ID is {shown(said)}; events have the ids {PROVISIONAL_ID} and {LAST_ID}. Leave the header out "
            "to start from the beginning."
        )
    return int(said)


def event(event_id: int, data: bytes) -> bytes:
    """Returns one event with JSON data without line breaks."""
    return b"id: %d\ndata: %b\n\n" % (event_id, data)
