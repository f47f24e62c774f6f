"""`firstline rollout watch` through a gateway's restart."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from firstline.cli import rollout
from firstline_core.errors import LinkDownError, StoreUnavailableError, UnauthorizedError
from firstline_core.fleet.rollout_documents import RolloutSummary

RUNNING = RolloutSummary(
    id="r1",
    bundle="digits",
    version=2,
    state="running",
    stage=0,
    phase="installing",
    sentence="Stage 1 of 1 begins.",
    revision=1,
    devices={"told": 2},
    control=1,
    consequences={},
    definition={},
    stages=1,
    created_by="ops",
    created_s=0.0,
    approved_by="",
    superseded_by="",
)


class RolloutStates:
    """A gateway's answers, one after the other."""

    def __init__(self, *answers: RolloutSummary | Exception) -> None:
        self._answers: Iterator[RolloutSummary | Exception] = iter(answers)

    def get(self, rollout: str) -> RolloutSummary:
        assert rollout == "r1"
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "_POLL_S", 0.0)


def test_watch_continues_while_the_gateway_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    away, full = LinkDownError("The gateway is away."), StoreUnavailableError("Its store is away.")
    states = RolloutStates(away, away, full, RUNNING, replace(RUNNING, state="completed"))
    assert rollout._watched(states, RUNNING).state == "completed"
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(".")[0] for line in lines] == [
        "running: Stage 1 of 1 begins",
        "The gateway is away",
        "Its store is away",
        "running: Stage 1 of 1 begins",
    ]


def test_watch_ends_if_the_key_is_revoked() -> None:
    with pytest.raises(UnauthorizedError):
        rollout._watched(RolloutStates(UnauthorizedError("The key was revoked.")), RUNNING)
