"""The words and tones that tables are made of: data that any page can show, no elements of one."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode


class Tone(StrEnum):
    """The meaning of a colour; each also has a sign, for people who do not see colours."""

    PLAIN = ""
    GOOD = "good"
    BUSY = "busy"
    BAD = "bad"


class Cell(NamedTuple):
    """A table's cell.

    Args:
        text: the text.
        href: where it leads; "" for nowhere.
        tone: how it stands.
    """

    text: str
    href: str = ""
    tone: Tone = Tone.PLAIN


class Column(NamedTuple):
    """A table's column; `number` aligns it to the right."""

    name: str
    label: str
    number: bool = False


Row = dict[str, Cell]
"""Cells by their columns' names; "key" tells rows apart."""


class Listing(NamedTuple):
    """A table as it is to be shown.

    Args:
        rows: at most a page of them.
        following: where the next page is; "" at the end.
    """

    rows: list[Row]
    following: str = ""


def plain(row: Row) -> dict[str, Any]:
    """The row as JSON."""
    return {name: cell._asdict() for name, cell in row.items() if name != "key"} | {"key": row["key"].text}


def moment(wall_s: float | None) -> str:
    """A time to the second, in UTC; "-" for none."""
    return "-" if wall_s is None else datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(wall_s: float) -> str:
    """The time of day, in UTC."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%H:%M:%S")


def long(seconds: float) -> str:
    """A time span."""
    for unit, per in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= per:
            return f"{seconds / per:.3g} {unit}"
    return f"{seconds:.3g} s"


def number(value: float | None) -> str:
    """Three digits of a figure; "-" where it is not known."""
    return "-" if value is None else f"{value:.3g}"


def address(path: str, **query: str) -> str:
    """Returns the address of a page; empty parameters are left out."""
    said = {name: value for name, value in query.items() if value}
    return quote(path) + (f"?{urlencode(said)}" if said else "")


def device_page(name: str) -> str:
    return f"/devices/{quote(name, safe='')}"


def rollout_page(rollout: str) -> str:
    return f"/rollouts/{quote(rollout, safe='')}"


def profile_page(bundle: str, version: int, machine: str) -> str:
    return f"/profiles/{quote(bundle, safe='')}/{version}/{quote(machine, safe='')}"
