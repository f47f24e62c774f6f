"""The pages on reliability tell what was measured, and have a place for everything that is."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.run import PARTS, SCRIPTS

from bench import page
from bench.figures import Figure, measured

QUOTING = page.quoting("chaos", "independent-kills", "hostile-images", *SCRIPTS)


@pytest.mark.parametrize("path", QUOTING, ids=lambda path: path.stem)
def test_their_figures_are_the_measured_ones(path: Path) -> None:
    text = path.read_text()
    assert page.filled(text, measured) == text, "run `make chaos`, or restore bench/results/*.json"


def test_every_part_has_its_table() -> None:
    tables = {table for path in QUOTING for table in page.tables(path.read_text())}
    assert {("chaos", part) for part in PARTS} <= tables
    assert {target for target, _ in tables} >= {*SCRIPTS, "independent-kills", "hostile-images"}
    assert {figure.figure.partition(": ")[0] for figure in measured("chaos")} <= {part for _, part in tables}


@pytest.mark.parametrize("path", QUOTING, ids=lambda path: path.stem)
def test_what_does_not_hold_is_said_and_explained(path: Path) -> None:
    text = path.read_text()
    short = text.partition("## What falls short\n")[2].partition("\n## ")[0]
    missed = {figure.figure for target, _ in page.tables(text) for figure in measured(target) if figure.holds is False}
    assert {figure for figure in missed if f"*{figure}*" not in short} == set()


def test_a_table_is_filled_with_its_own_figures() -> None:
    text = "a\n<!-- figures: t/x -->\nold\n<!-- end -->\nb"
    known = [Figure("x: lost", 0, "", "0", True), Figure("x: memory", 1234.5, "MiB"), Figure("y: z", 1, "")]
    found = page.filled(text, {"t": known}.__getitem__)
    assert found == (
        "a\n<!-- figures: t/x -->\n| figure | measured | aim |\n|---|---|---|\n"
        "| lost | 0 | 0 |\n| memory | 1,234.5 MiB | |\n<!-- end -->\nb"
    )
    assert page.filled(found, lambda _: []) == "a\n<!-- figures: t/x -->\n<!-- end -->\nb"
    assert "| y: z | 1 | |" in page.filled("<!-- figures: t -->\n<!-- end -->", lambda _: known)
