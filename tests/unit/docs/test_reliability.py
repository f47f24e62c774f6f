"""The pages on reliability have a place for everything that was measured, and explain what falls short."""

from pathlib import Path

import pytest
from chaos.run import PARTS, SCRIPTS

from bench import page
from bench.figures import measured

QUOTING = page.quoting("chaos", "independent-kills", "hostile-images", *SCRIPTS)


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
