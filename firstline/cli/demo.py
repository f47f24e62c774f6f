"""`firstline demo`: runs both tiers on this machine, with a live table and a summary."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group
from firstline.cli.output import table

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    import asyncio

    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from firstline.cli.signals import until_signalled
    from firstline.demo.scenario import KINDS, Record, accuracy, percentiles_ms, run
    from firstline.demo.site import digits_folder, next_commands

app = command_group()

_REFRESH_S = 0.1


@command(app, "demo", example="firstline demo")
def demo() -> Report:
    """Run both tiers here, send real traffic, cut the link, restore it, and count.

    Exits with 1 if a request or a promised correction was lost. SIGINT and SIGTERM stop everything that it started.
    """
    with _Screen() as screen:
        summary = asyncio.run(until_signalled(run(digits_folder(), show=screen.show)))
    if isinstance(summary, signal.Signals):
        raise typer.Exit(128 + summary)  # as shells have it
    commands = next_commands()
    text = (
        _summary_table(summary),
        _sentences(summary),
        "\n".join(["Type next:", *(f"  {each}" for each in commands)]),
    )
    return Report(summary | {"next": list(commands)}, text, EXIT_FAILED if summary["lost"] else 0)


class _Screen:
    """Yields a live table on stderr, or a line for each phase if stderr is not a terminal."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._phase = ""
        self._next_s = 0.0

    def __enter__(self) -> _Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, phase: str, records: Sequence[Record]) -> None:
        new_phase, self._phase = phase != self._phase, phase
        if not self._console.is_terminal:
            if new_phase:
                self._console.print(phase)
            return
        if new_phase or time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _REFRESH_S
            self._live.update(Group(Text(phase, style="bold"), _live_table(records)), refresh=True)


def _live_table(records: Sequence[Record]) -> Table:
    rows = []
    for kind in KINDS:
        answers = [record for record in records if record.kind == kind]
        times = percentiles_ms(record.ms for record in answers)
        right = f"{accuracy(answers):.2%}" if answers else "-"
        rows.append((kind, str(len(answers)), _ms(times["p50"]), _ms(times["p99"]), right))
    return table("who answered", ">answers", ">p50 ms", ">p99 ms", ">accuracy", rows=rows)


def _summary_table(summary: dict[str, Any]) -> Table:
    rows = []
    for kind in KINDS:
        count, times = summary["answers"][kind], summary["latency_ms"][kind]
        rows.append((kind, str(count), f"{count / summary['requests']:.1%}", _ms(times["p50"]), _ms(times["p99"])))
    return table("who answered", ">answers", ">share", ">p50 ms", ">p99 ms", rows=rows)


def _sentences(summary: dict[str, Any]) -> str:
    right, offline = summary["accuracy"], summary["offline"]
    return (
        f"{summary['requests']} requests, {summary['lost']} lost; the device sent {summary['bytes_sent']:,} bytes.\n"
        f"Accuracy: edge only {right['edge_only']:.2%}, full only {right['cloud_only']:.2%}, "
        f"tiered {right['tiered']:.2%}.\n"
        f"While the link was cut: {offline['answered']} answered, of which {offline['corrected']} were provisional "
        f"and corrected once it was back.\n{_certified(summary)}"
    )


def _certified(summary: dict[str, Any]) -> str:
    certified, requests = summary["certified"], summary["requests"]
    counts = (
        f"Certified: {certified['at_first']} of {requests} answers as they came, {certified['at_last']} with the "
        "corrections."
    )
    if not certified["promise"]:
        return f"{counts} Edge answers are not: the bundle carries no valid certificate for this device's model."
    disagreeing, accepted = certified["images"]["disagreeing"], certified["images"]["kept"]
    return (
        f"{counts}\nThe promise: {certified['promise']}. Here, {disagreeing} of {accepted} images accepted at the edge "
        "do."
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
