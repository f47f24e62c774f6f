"""The functions of tasks in the field, also of those that fail."""

import numpy as np
import pytest
from support.logs import captured_lines

from firstline_core.tasks import field
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.field import field_events, field_group, field_losses, field_occurrences, field_scores
from firstline_core.types import PROBABILITIES, Arrays

TASK = Classification(("a", "b", "c"))


def said(*labels: int) -> Arrays:
    return {PROBABILITIES: np.eye(3, dtype=np.float32)[list(labels)]}


def raises(*_: object) -> None:
    raise KeyError("boxes")


def test_a_task_that_works_decides() -> None:
    assert field_losses(TASK, said(0, 1), said(0, 2)).tolist() == [0, 1]
    assert field_events(TASK, said(1), said(2)) == {"invented b": 1.0, "missed c": 1.0}
    assert field_events(TASK, said(1), said(1)) == {"missed b": 0.0, "invented b": 0.0}


def test_a_loss_that_fails_is_logged_once_and_counts_as_1(monkeypatch: pytest.MonkeyPatch) -> None:
    field._log_once.cache_clear()
    monkeypatch.setattr(Classification, "loss", raises)
    with captured_lines() as lines:
        assert field_losses(TASK, said(0, 1), said(0, 1)).tolist() == [1, 1]
        assert field_losses(TASK, said(0), said(0)).tolist() == [1]
    assert [line["event"] for line in lines] == ["loss of a task failed, counted as 1"]


def test_values_outside_are_clipped_and_nan_counts_as_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "loss", lambda *_: np.array([-1, 0.5, 7, np.nan, np.inf]))
    assert field_losses(TASK, said(*[0] * 5), said(*[0] * 5)).tolist() == [0, 0.5, 1, 1, 1]


def test_events_that_fail_have_occurred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "events_of", raises)
    assert field_events(TASK, said(1), said(1)) == {"missed b": 1.0, "invented b": 1.0}
    monkeypatch.setattr(Classification, "occurrences", raises)
    assert field_events(TASK, said(1), said(1)) == dict.fromkeys(TASK.events, 1.0)


def test_scores_and_groups_that_fail_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = said(1)
    assert field_scores(TASK, lambda *args: TASK.score("margin", *args), said(0, 1), {}) == pytest.approx([1, 1])
    assert (field_group(TASK, outputs), field_occurrences(TASK, outputs)) == ("b", {"b": 1})
    assert field_scores(TASK, lambda *_: np.ones(3, np.float32), said(0, 1), {}) == [None, None]
    for name in ("score", "groups", "occurrences"):
        monkeypatch.setattr(Classification, name, raises)
    field._log_once.cache_clear()
    with captured_lines() as lines:
        assert field_scores(TASK, lambda *args: TASK.score("margin", *args), said(0, 1), {}) == [None, None]
        assert (field_group(TASK, outputs), field_occurrences(TASK, outputs)) == ("", {})
    assert [line["event"] for line in lines] == ["score or group of a task failed, counted as unknown"]
