"""A disk that is full or fails at any one change: promises are refused, nothing else happens, and counts are exact."""

from __future__ import annotations

from support.disk_errors import errors_at


def test_any_change_of_an_outbox_may_fail() -> None:
    counts = errors_at(first=1, step=5)
    assert counts["changes"] > 40
    assert counts["rounds"] == 4 * len(range(1, counts["changes"] + 1, 5))
    assert counts["refusing"] > counts["rounds"] / 4
