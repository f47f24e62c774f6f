import pytest

from firstline_core.telemetry.trace import from_lines, received, restored
from firstline_core.types import TraceContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_received_context_gets_a_new_span() -> None:
    found = received(PARENT, "congo=t61rcWkgMzE, rojo=00f067aa0ba902b7")
    assert (found.trace_id, found.parent_id, found.flags) == (TRACE, SPAN, 1)
    assert found.span_id not in (SPAN, "0" * 16) and len(found.span_id) == 16
    assert found.headers() == {
        "traceparent": f"00-{TRACE}-{found.span_id}-01",
        "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    }
    assert found.facts() == {"trace_id": TRACE, "span_id": found.span_id}
    assert received(PARENT).span_id != found.span_id
    assert restored(PARENT) == TraceContext(TRACE, SPAN, "", 1)


@pytest.mark.parametrize(("sent", "goes_on"), [("00", 0), ("01", 1), ("02", 2), ("03", 3), ("ff", 3), ("fc", 0)])
def test_only_defined_flags_are_forwarded(sent: str, goes_on: int) -> None:
    assert received(f"00-{TRACE}-{SPAN}-{sent}").traceparent.endswith(f"-0{goes_on}")


@pytest.mark.parametrize("value", [f" {PARENT}\t", f"cc-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01-what.ever-comes"])
def test_fields_of_later_versions_are_ignored(value: str) -> None:
    found = received(value)
    assert found.traceparent == f"00-{TRACE}-{found.span_id}-01"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "-more",
        PARENT + "\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 300,
    ],
)
def test_headers_without_a_trace_are_ignored(value: str) -> None:
    assert received(value) is None


@pytest.mark.parametrize(
    ("sent", "goes_on"),
    [
        ("a=1", "a=1"),
        ("a=1,\t , b=2", "a=1,b=2"),
        ("0tenant@vendor=x y", "0tenant@vendor=x y"),
        (",".join(f"k{n}=v" for n in range(32)), ",".join(f"k{n}=v" for n in range(32))),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        ("a=" + "x" * 255, "a=" + "x" * 255),
        ("a=" + "x" * 257, ""),
        ("k" * 257 + "=x", ""),
        ("a=1,b=" + "x" * 250 + ",c=" + "x" * 253, "a=1,b=" + "x" * 250 + ",c=" + "x" * 253),
        ("a=1,b=" + "x" * 250 + ",c=" + "x" * 254, ""),
        ("a=1,a=2", ""),
        ("a=1,b", ""),
        ("A=1", ""),
        ("a=b=c", ""),
        ("a=\x7f", ""),
        ("a=1\r\nX: y", ""),
        ("a=é", ""),
        ("=1", ""),
    ],
)
def test_a_tracestate_is_forwarded_as_a_whole(sent: str, goes_on: str) -> None:
    assert received(PARENT, sent).state == goes_on


def test_contradictory_headers_are_ignored_and_lists_are_joined() -> None:
    parent, host = (b"traceparent", PARENT.encode()), (b"host", b"x")
    assert from_lines([host]) is None
    assert from_lines([parent, host, parent]) is None
    found = from_lines([(b"tracestate", b"a=1"), parent, (b"tracestate", b"b=2")])
    assert (found.parent_id, found.state) == (SPAN, "a=1,b=2")
    assert from_lines([("traceparent", PARENT), ("key-bin", b"\xff")]) is not None  # as gRPC has it
