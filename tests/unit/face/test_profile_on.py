"""What is said while a device measures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firstline.cli.profile_on import followed
from firstline_core.errors import LinkDownError
from firstline_core.fleet.profiles import ProfileRequest
from firstline_core.fleet.profiling import DesiredProfile, ProfilingState

MEASURING = ProfileRequest("press-7", DesiredProfile("1", "digits"), ProfilingState.MEASURING)
DONE = ProfileRequest("press-7", DesiredProfile("1", "digits"), ProfilingState.DONE)
AWAY = LinkDownError("The gateway cannot be reached.")


class Answers:
    """A gateway's, one after the other."""

    def __init__(self, *answers: ProfileRequest | Exception) -> None:
        self._answers: Iterator[ProfileRequest | Exception] = iter(answers)

    def request(self, before: ProfileRequest) -> ProfileRequest:
        """The next one."""
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_outage_is_told_once_each_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("firstline.cli.profile_on._LOOK_S", 0.0)
    answers = Answers(AWAY, AWAY, AWAY, MEASURING, MEASURING, AWAY, AWAY, DONE)
    assert followed(answers, MEASURING) is DONE
    away = "The gateway cannot be reached. It is asked again."
    assert capsys.readouterr().err.splitlines() == ["press-7 measures digits.", away, away]
