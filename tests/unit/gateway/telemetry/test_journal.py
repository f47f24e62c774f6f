from typing import Any

import pytest
from support.logs import captured_lines

from firstline_core.errors import FirstlineError, InferenceError, QueueFullError
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.telemetry import journal
from firstline_gateway.telemetry.journal import record


@pytest.fixture(autouse=True)
def no_flood_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have refused more than has lines, which the next refusal then says."""
    monkeypatch.setattr(journal, "_flood", journal._Flood())


def lines(model: str = "digits", error: FirstlineError | None = None) -> tuple[list[dict[str, Any]], str]:
    metrics = RequestMetrics("gateway")
    with captured_lines() as captured:
        record(metrics, transport="mqtt", model=model, principal="device:a", seconds=0.0015, error=error)
    return captured, metrics.render()[0].decode()


def test_an_answer_is_one_line() -> None:
    (line,), text = lines()
    assert line == {
        "event": "answered",
        "level": "info",
        "outcome": "ok",
        "transport": "mqtt",
        "model": "digits",
        "principal": "device:a",
        "ms": 1.5,
    }
    assert "errors_total{" not in text


@pytest.mark.parametrize(
    ("error", "event", "level"),
    [
        (QueueFullError("full"), "refused", "info"),
        (InferenceError("broken"), "failed", "error"),
        (FirstlineError("unforeseen"), "failed", "error"),
    ],
)
def test_a_failure_is_one_line_and_one_count_and_ours_stands_out(error: FirstlineError, event: str, level: str) -> None:
    (line,), text = lines(error=error)
    assert (line["event"], line["level"], line["outcome"]) == (event, level, error.code)
    assert line["error"] == error.message
    assert f'firstline_gateway_errors_total{{code="{error.code}"}} 1.0' in text


def test_a_callers_text_does_not_steer_a_terminal() -> None:
    (line,), _ = lines(model="a\x1b[31m\nb")
    assert line["model"] == r"'a\x1b[31m\nb'"
