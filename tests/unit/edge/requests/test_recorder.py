from pathlib import Path

from msgspec.structs import replace
from support.escalations import request, response
from support.logs import captured_lines

from firstline_core.clock import SimulatedClock
from firstline_core.telemetry.decisions import find
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.trace import received
from firstline_core.types import Reason, Status
from firstline_edge.cli.explain import describe
from firstline_edge.requests.context import ModelOutput, Row
from firstline_edge.requests.recorder import Recorder


def recorder_to(path: Path) -> Recorder:
    return Recorder(
        metrics=RequestMetrics("edge"),
        decisions_path=path,
        decisions_limit_bytes=1 << 20,
        log_requests=True,
        clock=SimulatedClock(),
    )


async def test_the_policys_reason_is_logged_where_another_replaced_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorder = recorder_to(path)
    output = ModelOutput({}, 0.4)
    first, second = (Row(position, b"", b"", output) for position in range(2))
    first.accept_edge(Reason.UNCERTAIN, "d")
    second.accept_edge(Reason.LINK_DOWN, "d")
    same, replaced = response(request()), response(request())
    recorder.answered(request(), same, 0.1, rows=[first])
    recorder.answered(request(), replaced, 0.1, rows=[first, second])
    recorder.close()
    assert same.answer is not None and replaced.answer is not None
    (line,) = find(path, same.answer.request_id)
    assert "policy_reasons" not in line
    (line,) = find(path, replaced.answer.request_id)
    assert line["policy_reasons"] == ["uncertain", "uncertain"]


async def test_the_end_of_a_correction_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorder = recorder_to(path)
    final = response(request())
    assert final.answer is not None
    final = replace(final, answer=replace(final.answer, changed=True))
    expired = replace(final, answer=replace(final.answer, status=Status.EXPIRED, changed=None))
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with captured_lines() as lines:
        recorder.corrected(final)
        recorder.corrected(expired, "Other bundle.", trace)
    recorder.close()
    request_id = final.answer.request_id
    assert lines == [
        {"event": "corrected", "level": "info", "request_id": request_id, "model": "digits", "changed": True},
        {
            "event": "correction expired",
            "level": "info",
            "request_id": request_id,
            "model": "digits",
            "cause": "Other bundle.",
            **trace.facts(),
        },
    ]
    first, ended = find(path, request_id)
    assert "cause" not in first and ended["cause"] == "Other bundle."
    assert (first["changed"], ended["changed"]) == (True, None)
    assert (first.get("trace_id"), ended["trace_id"]) == (None, trace.trace_id)


async def test_explain_states_the_end_of_a_damaged_promise(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorder = recorder_to(path)
    recorder.damaged("an-id", "digits", "1")
    recorder.close()
    (line,) = find(path, "an-id")
    (sentence,) = describe(line)
    assert "damaged, so no correction will come" in sentence
