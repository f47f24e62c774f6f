"""The page on reliability tells what was measured, and has a place for everything that is."""

from __future__ import annotations

from chaos import page
from chaos.run import PARTS
from figures import Figure, measured

TEXT = page.PAGE.read_text()


def test_its_figures_are_the_measured_ones() -> None:
    assert page.filled(TEXT, measured("chaos")) == TEXT, "run `make chaos`, or take bench/results/chaos.json back"


def test_every_part_has_its_table_and_its_figures() -> None:
    named = page.parts(TEXT)
    assert set(PARTS) <= set(named)
    assert {figure.figure.partition(": ")[0] for figure in measured("chaos")} <= set(named)


def test_what_was_aimed_for_holds() -> None:
    assert [figure for figure in measured("chaos") if figure.holds is False] == []


def test_a_table_is_filled_with_its_own_figures() -> None:
    text = "a\n<!-- figures: x -->\nold\n<!-- end -->\nb"
    found = page.filled(
        text, [Figure("x: lost", 0, "", "0", True), Figure("x: memory", 1234.5, "MiB"), Figure("y: z", 1, "")]
    )
    assert found == (
        "a\n<!-- figures: x -->\n| figure | measured | aim |\n|---|---|---|\n"
        "| lost | 0 | 0 |\n| memory | 1,234.5 MiB | |\n<!-- end -->\nb"
    )
    assert page.filled(found, []) == "a\n<!-- figures: x -->\n<!-- end -->\nb"
