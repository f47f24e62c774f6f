"""View models of a device's profiles: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Iterable

from firstline.console.cells import Cell, Column, Row, Tone, moment, rows
from firstline_core.fleet.profiles import ProfileEntry, ProfileRequest
from firstline_core.fleet.twin import ProfilingState

_TONES = {
    ProfilingState.DONE: Tone.GOOD,
    ProfilingState.REFUSED: Tone.BAD,
}


PROFILES: tuple[Column[ProfileEntry], ...] = (
    Column("profile", "Profile", lambda one: f"{one.bundle} {one.version}"),
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


def request_rows(requests: Iterable[ProfileRequest]) -> list[Row]:
    """Returns a device's requests to measure bundles, with their progress."""
    return rows(REQUESTS, requests, lambda one: one.desired.id)
