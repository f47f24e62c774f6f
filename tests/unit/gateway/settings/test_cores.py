from __future__ import annotations

import os
from pathlib import Path

import pytest

from firstline_gateway.settings.settings import usable_cores


@pytest.mark.parametrize(
    ("said", "cores"),
    [
        (None, 8),
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("5000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("nonsense", 8),
        ("1 0", 8),
    ],
)
def test_a_containers_quota_bounds_the_sessions(
    said: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    if said is not None:
        (tmp_path / "cpu.max").write_text(said)
    assert usable_cores(tmp_path) == cores
