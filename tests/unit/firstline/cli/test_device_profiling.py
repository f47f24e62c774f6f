"""Messages while a device measures."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace
from support.profiles import point, profile

from firstline.cli.device_profiling import followed, unheeded
from firstline_core.errors import LinkDownError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileRequest
from firstline_core.fleet.twin import DesiredProfile, ProfilingState
from firstline_core.profile.profile import Refused
from firstline_core.runtime.select import CPU

MEASURING = ProfileRequest("press-7", DesiredProfile("digits", id="1"), ProfilingState.MEASURING)
DONE = ProfileRequest("press-7", DesiredProfile("digits", id="1"), ProfilingState.DONE)
AWAY = LinkDownError("The gateway cannot be reached.")


class Answers:
    """The gateway's answers, in order."""

    def __init__(self, *answers: ProfileRequest | Exception) -> None:
        self._answers: Iterator[ProfileRequest | Exception] = iter(answers)

    def request(self, before: ProfileRequest) -> ProfileRequest:
        """The next one."""
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_outage_is_reported_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("firstline.cli.device_profiling._LOOK_S", 0.0)
    answers = Answers(AWAY, AWAY, AWAY, MEASURING, MEASURING, AWAY, AWAY, DONE)
    assert followed(answers.request, MEASURING) is DONE
    away = "The gateway cannot be reached. It is asked again."
    assert capsys.readouterr().err.splitlines() == ["press-7 measures digits.", away, away]


def test_default_options_are_not_sent() -> None:
    assert msgspec.json.encode(NewProfileRequest("digits", quick=True)) == b'{"bundle":"digits","quick":true}'


def test_options_ignored_by_an_outdated_agent_are_named() -> None:
    asked = NewProfileRequest("digits", providers=(CPU, "CUDAExecutionProvider"), throttled_share=0.5)
    warm = profile(1.0)
    assert unheeded(warm, asked) == "--throttled and --providers"
    emulated = replace(point(1.0), key=replace(point(1.0).key, condition="emulated"), processor_share=0.5)
    cuda = Refused(replace(point(1.0).key, provider="CUDAExecutionProvider"), "onnxruntime", "There is none.")
    heard = replace(warm, points=(*warm.points, emulated), refused=(cuda,))
    assert unheeded(heard, asked) == ""
    assert unheeded(heard, replace(asked, throttled_share=0.25)) == "--throttled"
    assert unheeded(warm, NewProfileRequest("digits")) == ""
