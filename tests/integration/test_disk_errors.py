"""A disk that is full or fails at any one change: promises are refused, nothing else happens, and counts are exact."""

from __future__ import annotations

import zipfile
from pathlib import Path

from support.agent import DIGITS
from support.disk_errors import agent_on_a_failing_disk, errors_at, replacement_errors


def test_any_change_of_an_outbox_may_fail() -> None:
    counts = errors_at(first=1, step=5)
    assert counts["changes"] > 40
    assert counts["rounds"] == 4 * len(range(1, counts["changes"] + 1, 5))
    assert counts["refusing"] > counts["rounds"] / 4


def test_any_change_of_a_replacement_may_fail_and_no_promise_is_lost() -> None:
    counts = replacement_errors(step=4)
    assert counts["rounds"] > 150
    assert counts["refusing"] > counts["rounds"] / 4


def test_an_agent_answers_whatever_its_disk_does(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    with zipfile.ZipFile(DIGITS.parent / "heldout" / "images.zip") as archive:
        picture.write_bytes(archive.read(next(name for name in sorted(archive.namelist()) if name.endswith(".png"))))
    counts = agent_on_a_failing_disk(picture)
    assert counts["refused"] > 0
    assert counts["promised"] > 0
