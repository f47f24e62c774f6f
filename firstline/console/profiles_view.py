"""View models of profiles: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Iterable

from firstline.console.cells import Cell, Column, Listing, Row, Tone, address, device_page, moment, profile_page
from firstline_core.fleet.profiles import ProfileEntry, ProfilePage, ProfileRequest
from firstline_core.fleet.twin import ProfilingState
from firstline_core.profile.profile import Profile
from firstline_core.profile.summary import COLUMNS, notes, rows

PROFILES = (
    Column("profile", "Profile"),
    Column("machine", "Machine"),
    Column("board", "Board"),
    Column("points", "Points", number=True),
    Column("refused", "Refused", number=True),
    Column("made", "Measured (UTC)"),
    Column("by", "By"),
)
REQUESTS = (
    Column("bundle", "Bundle"),
    Column("state", "State"),
    Column("points", "Points", number=True),
    Column("why", "Why"),
    Column("by", "Asked by"),
    Column("until", "Until (UTC)"),
)
_WORDS = 2
"""Number of leading columns that contain text."""
POINTS = tuple(Column(f"column-{at}", label, number=at >= _WORDS) for at, label in enumerate(COLUMNS))
_TONES = {
    ProfilingState.DONE: Tone.GOOD,
    ProfilingState.REFUSED: Tone.BAD,
    ProfilingState.UNKNOWN: Tone.BAD,
    ProfilingState.EXPIRED: Tone.BAD,
}


def profile_rows(entries: Iterable[ProfileEntry]) -> list[Row]:
    """Returns the rows of the stored profiles."""
    return [
        {
            "key": Cell(f"{one.bundle}/{one.version}/{one.machine}"),
            "profile": Cell(f"{one.bundle} {one.version}", profile_page(one.bundle, one.version, one.machine)),
            # Any machine may have a profile: only one that a device uploaded itself belongs to a device.
            "machine": Cell(one.machine, device_page(one.machine) if one.by == f"device:{one.machine}" else ""),
            "board": Cell(one.board or "-"),
            "points": Cell(str(one.points)),
            "refused": Cell(str(one.refused)),
            "made": Cell(moment(one.made_s or None)),
            "by": Cell(one.by),
        }
        for one in entries
    ]


def profile_listing(page: ProfilePage, **query: str) -> Listing:
    """Returns a page of stored profiles; `query` has the search parameters."""
    return Listing(profile_rows(page.profiles), address("/profiles", **query, after=page.after) if page.after else "")


def request_rows(requests: Iterable[ProfileRequest]) -> list[Row]:
    """Returns a device's requests to measure bundles, with their progress."""
    return [
        {
            "key": Cell(one.desired.id),
            "bundle": Cell(f"{one.desired.bundle} {one.version or one.desired.version or ''}".rstrip()),
            "state": Cell(one.state.value, tone=_TONES.get(one.state, Tone.BUSY)),
            "points": Cell(f"{one.done} of {one.total}" if one.total else "-"),
            "why": Cell(one.message or "-"),
            "by": Cell(one.by or "-"),
            "until": Cell(moment(one.until_s or None)),
        }
        for one in requests
    ]


def point_rows(profile: Profile) -> list[Row]:
    """Returns the measured points, as the command line shows them."""
    return [
        {"key": Cell(str(at))} | {column.name: Cell(value.strip()) for column, value in zip(POINTS, row, strict=True)}
        for at, row in enumerate(rows(profile, profile.accuracy))
    ]


def remarks(profile: Profile) -> list[str]:
    """Returns the remarks that do not fit into the table."""
    return list(notes(profile, profile.accuracy))
