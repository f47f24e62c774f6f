from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import structlog

from firstline_core.errors import QueueFullError
from firstline_core.telemetry import logs
from firstline_core.telemetry.decisions import DecisionLog, find
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import Answer, Attempt, InferResponse, Reason, Status, Tensor, Tier


def answered(request_id: str = "r-1", status: Status = Status.FINAL) -> InferResponse:
    answer = Answer(
        request_id=request_id,
        status=status,
        certified=False,
        durable=False,
        tier=Tier.EDGE,
        reason=Reason.CONFIDENT,
        confidence=0.9,
        model_digest="d" * 64,
        attempts=(Attempt(Tier.EDGE, "ok", 0.2),),
    )
    return InferResponse("digits", "1", (Tensor("probabilities", np.ones((1, 2), np.float32)),), answer=answer)


def test_a_log_line_is_one_json_object_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(format="json")
    logs.logger("edge").info("answered", request_id="r-1", tier="edge", reason="confident", note="x" * 10_000)
    logging.getLogger("some.library").warning("said %s", "this")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["request_id"], ours["tier"], ours["level"]) == ("answered", "r-1", "edge", "info")
    assert len(ours["note"]) < 2100
    assert theirs["event"] == "said this"


def test_the_level_hides_what_is_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level="warning")
    logs.logger("edge").info("hidden")
    logs.logger("edge").warning("seen", tier="edge")
    printed = capsys.readouterr().err
    assert "hidden" not in printed
    assert "seen" in printed


def test_a_program_that_uses_us_hears_nothing_unless_it_asks() -> None:
    said = """
        import logging, sys
        from firstline_core.telemetry.logs import logger
        log = logger("firstline_edge.agent")
        log.warning("quiet", tier="edge")
        if len(sys.argv) > 1:
            logging.basicConfig(level="INFO", format="%(name)s %(message)s")
            log.info("answered", tier="edge")
    """
    for arguments, expected in ([], ""), (["ask"], "firstline_edge.agent answered tier=edge\n"):
        command = [sys.executable, "-c", textwrap.dedent(said), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("", expected)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(
    form: Literal["text", "json"], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # structlog would show them where rich is installed: let it believe so.
    monkeypatch.setattr(structlog.dev, "default_exception_formatter", structlog.dev.rich_traceback, raising=False)
    logs.configure(format=form)
    try:
        _fail(b"the very " + b"payload")
    except ZeroDivisionError as error:
        logs.logger("edge").exception("broken")
        logging.getLogger("some.library").error("broken too", exc_info=error)
    printed = capsys.readouterr().err
    assert printed.count("ZeroDivisionError") == 2
    assert "the very payload" not in printed


def _fail(content: bytes) -> float:
    return len(content) / 0


def test_metrics_count_answers_errors_and_read_gauges() -> None:
    metrics = RequestMetrics("edge")
    metrics.observe(answered(), 0.003)
    metrics.error(QueueFullError("full"))
    metrics.gauge("outbox_items", "Items that wait.", lambda: 7)
    text = metrics.render()[0].decode()
    assert 'firstline_edge_requests_total{reason="confident",status="final",tier="edge"} 1.0' in text
    assert 'firstline_edge_errors_total{code="queue_full"} 1.0' in text
    assert "firstline_edge_outbox_items 7.0" in text
    assert 'firstline_edge_request_seconds_bucket{le="0.005",tier="edge"} 1.0' in text
    assert 'firstline_edge_request_seconds_bucket{le="0.002",tier="edge"} 0.0' in text


def test_the_decision_log_tells_a_request_in_order_and_holds_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    log.write(answered("a", Status.PROVISIONAL), wall_s=1.0, ms=2.0)
    log.write(answered("b"), wall_s=2.0)
    log.write(answered("a"), wall_s=3.0, corrected=True)
    log.close()
    told = find(path, "a")
    assert [line["status"] for line in told] == ["provisional", "final"]
    assert told[1]["corrected"] is True
    assert "probabilities" not in path.read_text()


def test_a_line_that_the_disk_has_damaged_is_passed_over_and_older_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    for number in range(3):
        log.append({"request_id": "a", "number": number})
    log.close()
    whole = path.read_bytes()
    assert [set(line) for line in find(path, "a")] == [{"request_id", "number"}] * 3
    first, second, _ = whole.splitlines(keepends=True)
    for bit in range(8 * len(first), 8 * (len(first) + len(second))):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        told = [line["number"] for line in find(path, "a")]
        assert told in ([0, 2], [0, 1, 2], [0])  # without its line break it takes the next one with it
    path.write_bytes(b'{"request_id":"a","number":7}\n' + whole[: len(whole) - 5])
    assert [line["number"] for line in find(path, "a")] == [7, 0, 1]


def test_the_decision_log_goes_on_when_it_cannot_change_files(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    in_the_way = tmp_path / "decisions.jsonl.1"
    in_the_way.mkdir()
    (in_the_way / "file").touch()
    log = DecisionLog(path, max_bytes=600)
    log.write(answered("first"), wall_s=0.0)
    for _ in range(2):  # each line tries anew
        with pytest.raises(OSError, match="decisions"):
            log.write(answered("lost"), wall_s=1.0)
    (in_the_way / "file").unlink()
    in_the_way.rmdir()
    log.write(answered("later"), wall_s=2.0)
    log.close()
    assert find(path, "first") and find(path, "later") and not find(path, "lost")


def test_the_decision_log_recovers_from_a_rotation_that_came_half_way(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=600)
    log.write(answered("first"), wall_s=0.0)
    path.replace(tmp_path / "decisions.jsonl.1")
    log.write(answered("second"), wall_s=1.0)
    log.close()
    assert find(path, "first") and find(path, "second")


def test_the_decision_log_is_bounded_and_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=2000)
    for number in range(50):
        log.write(answered(str(number)), wall_s=float(number))
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4000
    assert find(path, "49")
    assert not find(path, "0")
    with path.open("ab") as stream:
        stream.write(b'{"request_id": "torn')
    assert find(path, "49")
