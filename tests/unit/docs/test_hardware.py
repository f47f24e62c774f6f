"""The pages that quote the hardware benchmark tell what was measured."""

from __future__ import annotations

import pytest

from bench import page
from bench.figures import Figure, measured
from bench.hardware import run

PAGES = {path.stem: path for path in sorted(page.PAGES.rglob("*.md"))}
QUOTING = [path.stem for path in page.quoting(run.TARGET)]


@pytest.mark.parametrize("name", QUOTING)
def test_their_figures_are_the_measured_ones(name: str) -> None:
    text = PAGES[name].read_text()
    assert page.filled(text, measured) == text, "run `make -C bench hardware`, or take bench/results/hardware.json back"


@pytest.mark.parametrize(
    ("name", "parts"),
    [("adaptation", {"controller"}), ("predictions", {"prediction"})],
)
def test_they_have_a_table_for_each_part(name: str, parts: set[str]) -> None:
    assert {part for _, part in page.tables(PAGES[name].read_text())} >= parts


KNOWN = [
    Figure("x: a: size", 1234, "bytes"),
    Figure("x: a: b: size", 617, "bytes"),
    Figure("x: a: b: times smaller", 2.0004, "times", ">= 4", False),
    Figure("x: ab: size", 5, "bytes"),
    Figure("y: a: size", 5, "bytes"),
]


def filled(marker: str) -> list[str]:
    return page.filled(f"<!-- {marker} -->\n<!-- end -->", lambda _: KNOWN).splitlines()[1:-1]


def test_figures_stand_side_by_side() -> None:
    assert filled("columns: t/x: a | size | times smaller") == [
        "| | size | times smaller |",
        "|---|---|---|",
        "| itself | 1,234 bytes | |",
        "| b | 617 bytes | 2 times: missed |",
    ]
    assert filled("columns: t/z | size") == []
