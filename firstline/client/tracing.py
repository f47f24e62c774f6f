"""The trace of a call: the one that its caller names, or OpenTelemetry's current span."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from firstline_core.telemetry.trace import restored
from firstline_core.types import TRACEPARENT, TRACESTATE

_API = "opentelemetry.trace"


def headers(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    """Returns the trace headers of a request; none without a trace.

    Args:
        traceparent: of the caller, e.g. the header of the request that it answers; a malformed one is ignored (W3C
            Trace Context).
        tracestate: the header that accompanies `traceparent`.
    """
    named = restored(traceparent or "", tracestate or "")
    return named.headers() if named is not None else _under_way()


def _under_way() -> dict[str, str]:
    """Returns the headers of OpenTelemetry's current span, if the program has imported OpenTelemetry."""
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


def with_current_trace(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with the current trace, for calls from other threads."""
    found = headers(options.get(TRACEPARENT), options.get(TRACESTATE))
    return {**options, **found}
