"""Time by kind of operator, from ONNX Runtime's trace."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from firstline_core.errors import ProtocolError
from firstline_core.profile.profile import OPERATORS, Operator

LIMIT_BYTES = 64 * 1024 * 1024
_RUN = "model_run"
_KERNEL = "_kernel_time"


class _Details(Struct):
    op_name: str = ""
    provider: str = ""


class _Event(Struct):
    """An event of the trace: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html."""

    name: str
    dur: Annotated[float, Meta(ge=0)] = 0.0
    cat: str = ""
    args: _Details = field(default_factory=_Details)


def operators(trace: bytes, skip_runs: int = 1) -> tuple[Operator, ...]:
    """Returns the kinds of operators, slowest first.

    Args:
        trace: written by `OnnxRuntime.end_trace`.
        skip_runs: number of first runs, which allocate.

    Raises:
        ProtocolError: it is not a trace, or has no further run.
    """
    if len(trace) > LIMIT_BYTES:
        raise ProtocolError(f"ONNX Runtime's trace has {len(trace)} bytes; at most {LIMIT_BYTES} are read.")
    try:
        events = msgspec.json.decode(trace, type=list[_Event])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"ONNX Runtime's trace cannot be read: {error}.") from error
    runs = 0
    spent_us: dict[tuple[str, str], float] = defaultdict(float)
    nodes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in events:
        if event.name == _RUN:  # comes after the events of its operators
            runs += 1
        elif event.cat == "Node" and event.name.endswith(_KERNEL) and runs >= skip_runs:
            kind = (event.args.op_name[:64], event.args.provider[:64])
            spent_us[kind] += event.dur
            nodes[kind].add(event.name)
    counted = runs - skip_runs
    if counted < 1 or not spent_us:
        raise ProtocolError("ONNX Runtime's trace tells of no run.")
    found = [
        Operator(kind, len(nodes[kind, provider]), float(f"{total / counted / 1000:.5g}"), provider)
        for (kind, provider), total in spent_us.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.query_ms, one.kind)))[:OPERATORS]
