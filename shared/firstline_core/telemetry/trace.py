"""W3C Trace Context (levels 1 and 2): which trace a request belongs to, and what of that goes on with it. No I/O.

    https://www.w3.org/TR/trace-context-2/

Each tier is one span of a trace: what came in names its caller's, and gets a span id of this tier's own, which its log
lines have and which goes on to whoever is asked in turn. No trace begins here, and what is malformed is passed over, as
the specification wants it: no header costs a request its answer. No metric has a label from it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from contextvars import ContextVar

from firstline_core.types import TRACEPARENT, TRACESTATE, TraceContext

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_PARENT_CHARS = 256  # of versions to come
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_VERSION, _NO_VERSION = "00", "ff"
# Sampled, and (level 2) whether the trace id is random; of the others nobody knows yet what they mean.
_FLAGS = 0x03
# Section 3.3.1: a key, which may name a tenant, and a printable value without a comma, an equals sign or a last space.
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_STATE_CHARS, _STATE_MEMBERS = 512, 32


CURRENT: ContextVar[TraceContext | None] = ContextVar("trace", default=None)
"""Under which a batch is handed to servers behind: it has left its requests' own tasks there."""


def received(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The context of a request that came with these headers, with a span of its own; None where they name no trace."""
    caller = restored(traceparent, tracestate)
    return None if caller is None else child(caller.trace_id, caller.span_id, caller.flags, caller.state)


def child(trace_id: str, parent_id: str, flags: int, state: str = "") -> TraceContext:
    """A span of this tier's own under a caller's, whose parts were found to be right."""
    return TraceContext(trace_id, f"{random.getrandbits(64) or 1:016x}", parent_id, flags & _FLAGS, state)


def restored(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The very span that the headers name, as `TraceContext.headers` said it; None where they name none."""
    found = _PARENT.fullmatch(traceparent.strip(" \t")) if len(traceparent) <= _PARENT_CHARS else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN or version == _NO_VERSION or (more and version == _VERSION):
        return None
    return TraceContext(trace_id, span_id, "", int(flags, 16) & _FLAGS, _passed_on(tracestate) if tracestate else "")


def from_lines(lines: Iterable[tuple[bytes | str, bytes | str]]) -> TraceContext | None:
    """The context of a request with these headers, or this metadata, by lowered names.

    Two of `traceparent` contradict each other, and count as none; several of `tracestate` are one list.
    """
    found: dict[str, list[str]] = {TRACEPARENT: [], TRACESTATE: []}
    for name, value in lines:
        values = found.get(name if isinstance(name, str) else name.decode("latin-1"))
        if values is not None:
            values.append(value if isinstance(value, str) else value.decode("latin-1"))
    parents = found[TRACEPARENT]
    return received(parents[0], ",".join(found[TRACESTATE])) if len(parents) == 1 else None


def _passed_on(tracestate: str) -> str:
    """The list without its empty members; "" where it is too long, or is none."""
    if len(tracestate) > _STATE_CHARS:
        return ""
    members = [each for each in (each.strip(" \t") for each in tracestate.split(",")) if each]
    found = [_MEMBER.fullmatch(each) for each in members]
    keys = {each[1] for each in found if each is not None}
    if len(keys) != len(members) or len(members) > _STATE_MEMBERS:  # one that is malformed, or twice there
        return ""
    return ",".join(members)
