"""View models of profiles: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from firstline.console.cells import Cell, Column, Listing, Row, Tone, address, device_page, moment, profile_page, rows
from firstline_core.fleet.profiles import ProfileEntry, ProfilePage, ProfileRequest
from firstline_core.fleet.twin import ProfilingState
from firstline_core.profile.profile import Profile
from firstline_core.profile.summary import COLUMNS, notes
from firstline_core.profile.summary import rows as table_rows


def _column(at: int) -> Callable[[tuple[int, Sequence[str]]], str]:
    return lambda point: point[1][at].strip()


_WORDS = 2
"""Number of leading columns that contain text."""
POINTS: tuple[Column[tuple[int, Sequence[str]]], ...] = tuple(
    Column(f"column-{at}", label, _column(at), number=at >= _WORDS) for at, label in enumerate(COLUMNS)
)
_TONES = {
    ProfilingState.DONE: Tone.GOOD,
    ProfilingState.REFUSED: Tone.BAD,
}


PROFILES: tuple[Column[ProfileEntry], ...] = (
    Column(
        "profile",
        "Profile",
        lambda one: Cell(f"{one.bundle} {one.version}", profile_page(one.bundle, one.version, one.machine)),
    ),
    # Any machine may have a profile: only one that a device uploaded itself belongs to a device.
    Column(
        "machine",
        "Machine",
        lambda one: Cell(one.machine, device_page(one.machine) if one.by == f"device:{one.machine}" else ""),
    ),
    Column("board", "Board", lambda one: one.board or "-"),
    Column("points", "Points", lambda one: str(one.points), number=True),
    Column("refused", "Refused", lambda one: str(one.refused), number=True),
    Column("made", "Measured (UTC)", lambda one: moment(one.made_s or None)),
    Column("by", "By", lambda one: one.by),
)
REQUESTS: tuple[Column[ProfileRequest], ...] = (
    Column("bundle", "Bundle", lambda one: f"{one.desired.bundle} {one.version or one.desired.version or ''}".rstrip()),
    Column("state", "State", lambda one: Cell(one.state.value, tone=_TONES.get(one.state, Tone.BUSY))),
    Column("points", "Points", lambda one: f"{one.done} of {one.total}" if one.total else "-", number=True),
    Column("why", "Why", lambda one: one.message or "-"),
)


def profile_rows(entries: Iterable[ProfileEntry]) -> list[Row]:
    """Returns the rows of the stored profiles."""
    return rows(PROFILES, entries, lambda one: f"{one.bundle}/{one.version}/{one.machine}")


def profile_listing(page: ProfilePage, **query: str) -> Listing:
    """Returns a page of stored profiles; `query` has the search parameters."""
    return Listing(profile_rows(page.profiles), address("/profiles", **query, after=page.after) if page.after else "")


def request_rows(requests: Iterable[ProfileRequest]) -> list[Row]:
    """Returns a device's requests to measure bundles, with their progress."""
    return rows(REQUESTS, requests, lambda one: one.desired.id)


def point_rows(profile: Profile) -> list[Row]:
    """Returns the measured points, as the command line shows them."""
    return rows(POINTS, enumerate(table_rows(profile, profile.accuracy)), lambda point: str(point[0]))


def remarks(profile: Profile) -> list[str]:
    """Returns the remarks that do not fit into the table."""
    return list(notes(profile, profile.accuracy))
