"""The README's picture: every answer of a run of `firstline demo` over HTTP, by time, duration and who answered.

`make -C bench picture` writes docs/images/demo.svg, whose transparent ground suits light and dark pages.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from firstline.demo.scenario import Record, run
from firstline.demo.site import digits_folder

FILE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
ANSWERS = {
    "edge": ("#0e8f7e", "o", "the device's model"),
    "cache": ("#9061f0", "s", "the device's cache"),
    "cloud": ("#3b82f6", "^", "the full model"),
    "provisional": ("#d97706", "D", "provisional; the full model corrected each one later"),
}
"""Of each kind of answer its colour and mark, which differ in grey too, and its description."""
GREY = "#7d858c"
COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: Any = {"svg.hashsalt": "firstline", "svg.fonttype": "none"} | dict.fromkeys(COLOURED, GREY)


def main() -> int:
    """Runs the demo and draws it."""
    records: list[Record] = []

    def show(phase: str, latest: Sequence[Record]) -> None:
        if phase.startswith("HTTP"):
            records[:] = latest

    summary = asyncio.run(run(digits_folder(), show=show))
    FILE.parent.mkdir(exist_ok=True)
    draw(records, FILE)
    sys.stderr.write(f"{FILE}: {len(records)} answers over HTTP; lost in the whole demo: {summary['lost']}\n")
    return 1 if summary["lost"] else 0


def draw(records: Sequence[Record], file: Path) -> None:
    """Writes the records of one device to an SVG file."""
    start_s = min(record.sent_s for record in records)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.6), layout="constrained")
        axes = figure.subplots()
        for kind, (colour, mark, description) in ANSWERS.items():
            shown = [record for record in records if record.kind == kind]
            axes.scatter(
                [record.sent_s - start_s for record in shown],
                [record.ms for record in shown],
                s=14,
                c=colour,
                marker=mark,
                linewidths=0,
                alpha=0.8,
                label=f"{description} ({len(shown)})",
            )
        cut = [record.sent_s - start_s for record in records if record.offline]
        axes.axvspan(min(cut), max(cut), color=GREY, alpha=0.18, linewidth=0)
        middle = axes.get_xaxis_transform()
        axes.text((min(cut) + max(cut)) / 2, 0.94, "the link is cut", transform=middle, ha="center", va="top")
        axes.set(yscale="log", xlabel="seconds", ylabel="milliseconds until the answer")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Title": "A run of the demo"})


if __name__ == "__main__":
    raise SystemExit(main())
