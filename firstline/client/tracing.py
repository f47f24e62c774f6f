"""The trace that a call belongs to: the one that its caller names, or that OpenTelemetry has under way."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from firstline_core.telemetry.trace import restored
from firstline_core.types import TRACEPARENT, TRACESTATE

_API = "opentelemetry.trace"


def headers(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    """What a request says of its trace; nothing where there is none.

    Args:
        traceparent: of the caller, such as the header that came with the request that it answers; one that is malformed
            counts as none (W3C Trace Context).
        tracestate: beside that.
    """
    named = restored(traceparent or "", tracestate or "")
    return named.headers() if named is not None else _under_way()


def _under_way() -> dict[str, str]:
    """OpenTelemetry's current span; a program that has not imported it has none, and need not load it for that."""
    api: Any = sys.modules.get(_API)
    current = getattr(api, "get_current_span", None)  # absent while another thread imports it
    if current is None:
        return {}
    span = current().get_span_context()
    if not span.is_valid:
        return {}
    found = restored(
        f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}", span.trace_state.to_header()
    )
    return {} if found is None else found.headers()


def settled(wishes: Mapping[str, Any]) -> dict[str, Any]:
    """The wishes with the trace of this moment, for calls that other threads make."""
    found = headers(wishes.get(TRACEPARENT), wishes.get(TRACESTATE))
    return {**wishes, **found}
