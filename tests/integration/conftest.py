"""What every integration test lives in."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that a gateway's settings leave relative, such as where audits are kept, must not meet those of others."""
    monkeypatch.chdir(tmp_path)
