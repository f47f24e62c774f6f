"""Trace contexts are read as OpenTelemetry reads them, and no bytes are too strange to be passed over."""

import re

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry import trace as opentelemetry
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from firstline_core.telemetry.trace import received, restored

HEX = "0123456789abcdef"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def hexadecimal(size: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=size, max_size=size) | st.just("0" * size)


@st.composite
def parents(draw: st.DrawFn) -> str:
    """Right, or nearly so."""
    parts = [draw(st.sampled_from(["00", "00", "01", "cc", "ff"]) | hexadecimal(2))]
    parts += [draw(hexadecimal(size)) for size in (32, 16, 2)]
    header = "-".join(parts) + draw(st.sampled_from(["", "", "-", "-more", "more"]))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(header) - 1))
        header = header[:at] + draw(st.sampled_from(["", "g", "A", "-", " ", "\n", "٣"])) + header[at + 1 :]
    return header


STATES = st.lists(
    st.from_regex(r"[a-z0-9][a-z0-9_*/@-]{0,5}=[!-+\--<>-~]{1,6}", fullmatch=True) | st.text(max_size=4), max_size=5
).map(",".join)


@given(parents(), STATES)
@example(f"00-{TRACE}-{SPAN}-01", "a=1,b=2")
def test_context_is_read_as_by_opentelemetry(parent: str, state: str) -> None:
    carrier = {"traceparent": parent, "tracestate": state}
    context = TraceContextTextMapPropagator().extract(carrier)
    theirs = opentelemetry.get_current_span(context).get_span_context()
    found = restored(parent, state)
    if found is None:
        # They search where the specification wants the whole value, and go on reading after a line's end.
        assert not theirs.is_valid or not re.fullmatch(r"[ \t]*[0-9a-f-]+[!-~]*[ \t]*", parent)
        return
    assert theirs.is_valid
    assert (int(found.trace_id, 16), int(found.span_id, 16)) == (theirs.trace_id, theirs.span_id)
    assert found.flags & 1 == theirs.trace_flags & 1
    # They know the first level, where no key begins with a digit and tenants are apart.
    if found.state and all(re.match("[a-z][a-z0-9_*/-]*=", member) for member in found.state.split(",")):
        assert found.state == theirs.trace_state.to_header()


@given(st.text(max_size=80) | parents(), st.text(max_size=80) | STATES)
def test_invalid_headers_are_ignored_and_valid_ones_preserved(parent: str, state: str) -> None:
    found = received(parent, state)
    if found is None:
        return
    headers = found.headers()
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]", headers["traceparent"])
    assert re.fullmatch("[ -~]{0,512}", headers.get("tracestate", ""))
    assert restored(headers["traceparent"], headers.get("tracestate", "")) == replace(found, parent_id="")
