"""Messages while a device measures."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from firstline.cli.profile_source import followed
from firstline_core.errors import LinkDownError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileRequest
from firstline_core.fleet.twin import DesiredProfile, ProfilingState

MEASURING = ProfileRequest("press-7", DesiredProfile("digits", id="1"), ProfilingState.MEASURING)
REFUSED = ProfileRequest("press-7", DesiredProfile("digits", id="1"), ProfilingState.REFUSED, message="No.")
AWAY = LinkDownError("The gateway cannot be reached.")


class Answers:
    """The gateway's answers, in order."""

    def __init__(self, *answers: ProfileRequest | Exception | None) -> None:
        self._answers: Iterator[ProfileRequest | Exception | None] = iter(answers)

    def request(self, before: ProfileRequest) -> ProfileRequest | None:
        """The next one."""
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_outage_is_reported_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("firstline.cli.profile_source._LOOK_S", 0.0)
    answers = Answers(AWAY, AWAY, AWAY, MEASURING, MEASURING, AWAY, AWAY, None)
    assert followed(answers.request, MEASURING) == ""
    away = "The gateway cannot be reached. Retrying."
    assert capsys.readouterr().err.splitlines() == ["press-7 measures digits.", away, away]


def test_a_message_of_a_device_does_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("firstline.cli.profile_source._LOOK_S", 0.0)
    steering = replace(MEASURING, message="\x1b[2J")
    assert followed(Answers(None).request, steering) == ""
    assert capsys.readouterr().err == "\\x1b[2J\n"


def test_a_refusal_is_returned() -> None:
    assert followed(Answers().request, REFUSED) == "No."


def test_default_options_are_not_sent() -> None:
    assert msgspec.json.encode(NewProfileRequest("digits", quick=True)) == b'{"bundle":"digits","quick":true}'
