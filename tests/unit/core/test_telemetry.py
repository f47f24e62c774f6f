from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

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


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.mark.usefixtures("restored_logging")
def test_a_log_line_is_one_json_object_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(format="json")
    logs.logger("edge").info("answered", request_id="r-1", tier="edge", reason="confident", note="x" * 10_000)
    logging.getLogger("some.library").warning("said %s", "this")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["request_id"], ours["tier"], ours["level"]) == ("answered", "r-1", "edge", "info")
    assert len(ours["note"]) < 2100
    assert theirs["event"] == "said this"


@pytest.mark.usefixtures("restored_logging")
def test_the_level_hides_what_is_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level="warning")
    logs.logger("edge").info("hidden")
    logs.logger("edge").warning("seen", tier="edge")
    printed = capsys.readouterr().err
    assert "hidden" not in printed
    assert "seen" in printed


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
