"""The steps that follow an answer until it is final, with a server that refuses, is away, or answers nonsense."""

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from support.answers import answered

from firstline.client import retries
from firstline.client.calls import Call, answer, long_polling
from firstline_core import errors
from firstline_core.types import Status

CALL = answer("r-1")
PROVISIONAL, FINAL = answered(status=Status.PROVISIONAL), answered(status=Status.FINAL)
AWAY = errors.LinkDownError("gone")


def follow(
    *replies: Any, patience_s: float = 60.0, final: bool = True, apart_s: float = 0.0
) -> tuple[Any, list[float]]:
    """The result of the steps with these replies, which come so far apart, and the times that they wait."""
    steps = retries.followed(CALL, patience_s=patience_s, silence_s=2.0, final=final)
    waits: list[float] = []
    now_s = 0.0
    with patch.object(retries, "time", SimpleNamespace(monotonic=lambda: now_s)):
        step = next(steps)
        try:
            for reply in replies:
                assert step == long_polling(CALL, 2.0)
                now_s += apart_s
                step = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
                assert isinstance(step, float)
                waits.append(step)
                step = next(steps)
        except StopIteration as end:
            return end.value, waits
    raise AssertionError("the answer is not final")


def test_a_provisional_answer_is_asked_for_again() -> None:
    assert follow(*[PROVISIONAL] * 8, FINAL) == (FINAL, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])


def test_failures_are_retried_after_random_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of a server that restarts must not return at the same time."""
    monkeypatch.setattr(retries, "_RNG", random.Random(1))
    busy = errors.QueueFullError("busy")
    found, waits = follow(PROVISIONAL, AWAY, busy, AWAY, PROVISIONAL, AWAY, FINAL)
    drawn = random.Random(1)
    expected = [drawn.uniform(0, most_s) for most_s in (0.1, 0.2, 0.4, 0.1)]
    assert (found, waits) == (FINAL, [0.02, *expected[:3], 0.04, expected[3]])


def test_expired_answer_is_the_last() -> None:
    expired = answered(status=Status.EXPIRED)
    assert follow(PROVISIONAL, expired)[0] is expired


def test_a_job_is_awaited_longer_than_the_patience() -> None:
    unanswered = errors.NotReadyError("not yet", retry_after_s=1.0)
    assert follow(unanswered, unanswered, PROVISIONAL, patience_s=0.0, final=False) == (PROVISIONAL, [0.02, 0.04])


@pytest.mark.parametrize("reply", [PROVISIONAL, errors.NotReadyError("not yet")])
def test_patience_begins_with_the_latest_answer(reply: Any) -> None:
    assert follow(reply, AWAY, reply, AWAY, FINAL, apart_s=40.0)[0] is FINAL
    with pytest.raises(errors.LinkDownError):
        follow(reply, AWAY, AWAY, FINAL, apart_s=40.0)


def test_a_wait_is_as_long_as_the_server_asks() -> None:
    full = errors.QueueFullError("busy", retry_after_s=3.0)
    found, (wait_s,) = follow(full, FINAL)
    assert found is FINAL
    assert 3.0 <= wait_s <= 3.1


def test_no_wait_is_longer_than_the_patience() -> None:
    full = errors.QueueFullError("busy", retry_after_s=3600.0)
    assert follow(full, FINAL, patience_s=60) == (FINAL, [60.0])


@pytest.mark.parametrize(
    ("error", "patience_s"),
    [
        (AWAY, 0.0),
        (errors.UnknownAnswerError("none"), 60.0),
        (errors.DeadlineExceededError("late"), 60.0),
        (errors.ProtocolError("not HTTP"), 60.0),
    ],
)
def test_other_errors_end_the_waiting(error: errors.FirstlineError, patience_s: float) -> None:
    with pytest.raises(type(error)):
        follow(PROVISIONAL, error, patience_s=patience_s)


def test_one_call_is_sent_once() -> None:
    call: Call[Any] = CALL
    steps = retries.once(call)
    assert next(steps) is call
    with pytest.raises(errors.LinkDownError):
        steps.throw(AWAY)


def test_only_a_provisional_answer_has_a_successor() -> None:
    assert [retries.provisional_id(each) for each in (PROVISIONAL, FINAL)] == ["r-1", ""]
