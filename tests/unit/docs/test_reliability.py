"""The page on reliability tells what was measured, and has a place for everything that is."""

from __future__ import annotations

from chaos.run import PAGE, PARTS

from bench import page
from bench.figures import Figure, measured

TEXT = PAGE.read_text()


def test_its_figures_are_the_measured_ones() -> None:
    assert page.filled(TEXT, measured) == TEXT, "run `make chaos`, or restore bench/results/*.json"


def test_every_part_has_its_table() -> None:
    tables = page.tables(TEXT)
    assert {("chaos", part) for part in PARTS} <= set(tables)
    assert {figure.figure.partition(": ")[0] for figure in measured("chaos")} <= {part for _, part in tables}


def test_what_does_not_hold_is_said_and_explained() -> None:
    _, _, short = TEXT.partition("## What falls short\n")
    short, _, _ = short.partition("\n## ")
    missed = {figure.figure for target, _ in page.tables(TEXT) for figure in measured(target) if figure.holds is False}
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
