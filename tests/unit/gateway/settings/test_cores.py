from __future__ import annotations

import pytest

from firstline_core.hardware import survey
from firstline_gateway.settings.settings import Execution, Settings


@pytest.mark.parametrize(
    ("usable", "sessions"), [((8.0, False), 8), ((2.0, True), 2), ((1.5, True), 2), ((0.05, True), 1)]
)
def test_a_containers_quota_bounds_the_sessions(
    usable: tuple[float, bool], sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "usable_cores", lambda _tree: usable)
    assert Settings().sessions == sessions
    assert Settings(execution=Execution(sessions=3)).sessions == 3
