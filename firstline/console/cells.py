"""Cells, columns and rows of tables, and the formats of their texts. No page elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from firstline_core.telemetry.wording import rounded, utc_time

T = TypeVar("T")


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
        href: address that it links to; "" for none.
        tone: the meaning of its colour.
    """

    text: str
    href: str = ""
    tone: Tone = Tone.PLAIN


Row = dict[str, Cell]
"""Cells by column name; the cell "key" identifies the row."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    Attributes:
        cell: returns the cell of an item, or only its text.
        number: aligns the column to the right.
    """

    name: str
    label: str
    cell: Callable[[T], Cell | str]
    number: bool = False


def rows(columns: Sequence[Column[T]], items: Iterable[T], key: Callable[[T], str]) -> list[Row]:
    """Returns a row for each item; `key` identifies rows."""
    return [{"key": Cell(key(item))} | {column.name: _cell(column, item) for column in columns} for item in items]


def _cell(column: Column[T], item: T) -> Cell:
    cell = column.cell(item)
    return cell if isinstance(cell, Cell) else Cell(cell)


class Listing(NamedTuple):
    """A page of a table.

    Args:
        rows: of this page.
        following: address of the next page; "" at the end.
    """

    rows: list[Row]
    following: str = ""


def plain(row: Row) -> dict[str, Any]:
    """Returns a row as JSON."""
    return {name: cell._asdict() for name, cell in row.items() if name != "key"} | {"key": row["key"].text}


def moment(wall_s: float | None) -> str:
    """Returns a time in UTC, to the second; "-" for None."""
    return "-" if wall_s is None else utc_time(wall_s).strftime("%Y-%m-%d %H:%M:%S")


def iso_moment(iso: str | None) -> str:
    """Returns the gateway's text of a time in the form of `moment`; "-" for none."""
    return iso.removesuffix("+00:00").replace("T", " ") if iso else "-"


def clock(wall_s: float) -> str:
    """Returns the time of day in UTC."""
    return utc_time(wall_s).strftime("%H:%M:%S")


def number(value: float | None) -> str:
    """Returns a number with three digits; "-" if unknown."""
    return "-" if value is None else rounded(value)


def address(path: str, **query: str) -> str:
    """Returns the address of a page; empty parameters are left out."""
    parameters = {name: value for name, value in query.items() if value}
    return quote(path) + (f"?{urlencode(parameters)}" if parameters else "")


def device_page(name: str) -> str:
    return f"/devices/{quote(name, safe='')}"


def rollout_page(rollout: str) -> str:
    return f"/rollouts/{quote(rollout, safe='')}"


def contract_page(bundle: str) -> str:
    return f"/contracts/{quote(bundle, safe='')}"
