"""Output of commands: data on stdout as text or JSON, progress and warnings on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from firstline_core.telemetry.wording import escaped, utc_time

if TYPE_CHECKING:
    from rich.progress import ProgressColumn
    from rich.table import Table

# A bar that flashes by tells nothing.
_SILENT_S = 2.0
# Width of a table if stdout is not a terminal.
_PIPE_COLUMNS = 200


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Format of the output on stdout.")]


def say(text: str, *, err: bool = False) -> None:
    """Prints a line that may hold text from a gateway or a device."""
    typer.echo(escaped(text), err=err)


def print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=1))


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def table(*columns: str, rows: Iterable[Sequence[str]] = ()) -> Table:
    """Returns a plain table; columns whose names start with '>' are right-aligned."""
    from rich import box
    from rich.table import Table

    rich_table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        rich_table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        rich_table.add_row(*map(escaped, row))
    return rich_table


def print_table(made: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(made)


def warn(sentence: str) -> None:
    say(f"Warning: {sentence}", err=True)


def rows_checked_sentence(rows_checked: Mapping[str, int]) -> str:
    """Returns how many rows of each model, by id, were checked for independence."""
    counts = ", ".join(f"{rows} of {model}" for model, rows in rows_checked.items())
    return f"Rows checked for independence: {counts or 'none'}."


def date(wall_s: float | None) -> str:
    """Returns a time (seconds since 1970) to the minute, in UTC; "-" for None."""
    return "-" if wall_s is None else utc_time(wall_s).strftime("%Y-%m-%d %H:%M")


def size(count_bytes: int) -> str:
    """Returns a number of bytes as text."""
    value, unit = float(count_bytes), "bytes"
    for larger in ("KB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


def progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Yields a progress bar on stderr after two seconds; without a terminal there is none.

    Yields:
        A function that takes the progress and the total.
    """
    from rich.progress import MofNCompleteColumn

    return _bar(what, MofNCompleteColumn())


def bytes_progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Yields the same for bytes."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    return _bar(what, DownloadColumn(), TransferSpeedColumn())


@contextmanager
def _bar(what: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(TextColumn(what), BarColumn(), *columns, TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task(what, total=None)
    started = False
    start_s = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal started
        if not console.is_terminal or time.monotonic() - start_s < _SILENT_S:
            return
        bar.update(task, completed=done, total=total)
        bar.start()
        started = True

    try:
        yield report
    finally:
        if started:  # else it would print an empty line
            bar.stop()
