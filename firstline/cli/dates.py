"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def date(wall_s: float | None) -> str:
    """A time (seconds since 1970) to the minute, in UTC; "-" for none."""
    return "-" if wall_s is None else datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M")
