"""A disk that is full or fails at any one change: promises are refused, nothing else happens, and counts are exact."""

from pathlib import Path

from support.digits import scan
from support.disk_errors import agent_on_a_failing_disk, errors_at, replacement_errors


def test_failing_writes_of_an_outbox_are_survived() -> None:
    counts = errors_at(first=1, step=5)
    assert counts["changes"] > 40
    assert counts["rounds"] == 4 * len(range(1, counts["changes"] + 1, 5))
    assert counts["refusing"] > counts["rounds"] / 4


def test_failing_writes_of_a_replacement_lose_no_promise() -> None:
    counts = replacement_errors(step=4)
    assert counts["rounds"] > 150
    assert counts["refusing"] > counts["rounds"] / 4


def test_agent_answers_on_a_failing_disk(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(scan())
    counts = agent_on_a_failing_disk(picture)
    assert counts["refused"] > 0
    assert counts["promised"] > 0
