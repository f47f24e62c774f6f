"""W3C Trace Context (levels 1 and 2): parsing and propagation. No I/O.

    https://www.w3.org/TR/trace-context-2/

Each tier is one span of a trace. The incoming headers name the caller's span; this tier gets its own span id, which its
log lines show and which it sends on. `tracing` begins traces and exports spans. Malformed headers are ignored, as the
specification requires, and never fail a request. No metric has a label from a trace.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from contextvars import ContextVar

from firstline_core.types import TRACEPARENT, TRACESTATE, TraceContext

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_PARENT_CHARS = 256  # for future versions
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_VERSION, _NO_VERSION = "00", "ff"
# Sampled, and (level 2) whether the trace id is random; the other flags are not defined.
_FLAGS = 0x03
# Section 3.3.1: a key, which may name a tenant, and a printable value without a comma, an equals sign or a last space.
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_STATE_CHARS, _STATE_MEMBERS = 512, 32
# HTTP's names are bytes, gRPC's text.
_NAMES: dict[bytes | str, str] = {
    written: name for name in (TRACEPARENT, TRACESTATE) for written in (name, name.encode())
}


CURRENT: ContextVar[TraceContext | None] = ContextVar("trace", default=None)
"""The trace of a batch that is sent to other servers, outside the tasks of its requests."""


def received(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Returns the context of a request with these headers, with a new span; None if they name no trace."""
    caller = restored(traceparent, tracestate)
    if caller is None:
        return None
    span_id = f"{random.getrandbits(64) or 1:016x}"
    return TraceContext(caller.trace_id, span_id, caller.span_id, caller.flags, caller.state)


def restored(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Returns the span that the headers name, as written by `TraceContext.headers`; None if they name none."""
    match = _PARENT.fullmatch(traceparent.strip(" \t")) if len(traceparent) <= _PARENT_CHARS else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN or version == _NO_VERSION or (more and version == _VERSION):
        return None
    return TraceContext(trace_id, span_id, "", int(flags, 16) & _FLAGS, _passed_on(tracestate) if tracestate else "")


def from_lines(lines: Iterable[tuple[bytes | str, bytes | str]]) -> TraceContext | None:
    """Returns the context of a request with these headers or metadata, with lower-case names.

    Several `traceparent` headers count as none; several `tracestate` headers are one list.
    """
    parents: list[str] = []
    states: list[str] = []
    for name, value in lines:
        if name in _NAMES:
            text = value if isinstance(value, str) else value.decode("latin-1")
            (parents if _NAMES[name] == TRACEPARENT else states).append(text)
    return received(parents[0], ",".join(states)) if len(parents) == 1 else None


def _passed_on(tracestate: str) -> str:
    """Returns the list without empty members; "" if it is too long or malformed."""
    if len(tracestate) > _STATE_CHARS:
        return ""
    members = [each for each in (each.strip(" \t") for each in tracestate.split(",")) if each]
    matches = [_MEMBER.fullmatch(each) for each in members]
    keys = {each[1] for each in matches if each is not None}
    if len(keys) != len(members) or len(members) > _STATE_MEMBERS:  # malformed or duplicate members
        return ""
    return ",".join(members)
