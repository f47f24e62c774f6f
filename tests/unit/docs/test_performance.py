"""The page on performance tells what was measured, and says of every aim that is missed that it is."""

from __future__ import annotations

import pytest

from bench import page
from bench.figures import Figure, measured
from bench.serving import tables
from bench.serving.run import PARTS

TEXT = tables.PAGE.read_text()


def test_its_figures_are_the_measured_ones() -> None:
    assert tables.filled(TEXT) == TEXT, "run `make -C bench serving`, or restore bench/results/*.json"


def test_every_part_and_every_command_has_its_table() -> None:
    assert {("serving", part) for part in PARTS} <= set(page.tables(TEXT))
    assert {target for target, _ in page.tables(TEXT)} >= {"serving", "peers"}


def test_what_is_missed_is_listed_and_explained() -> None:
    _, _, short = TEXT.partition("## What falls short\n")
    missed = [figure.figure for target in ("serving", "peers") for figure in measured(target) if figure.holds is False]
    assert [figure for figure in missed if f"| {figure} |" not in short] == []
    assert short.rpartition("<!-- end -->")[2].strip(), "say why, and what would be needed"


def test_a_table_may_tell_of_aims_alone_or_of_what_is_missed() -> None:
    known = [Figure("x: a", 1, "", "1", True), Figure("x: b", 2, "", "1", False), Figure("x: c", 3, "")]
    empty = "<!-- figures: t/x{} -->\n<!-- end -->"

    def rows(which: str) -> list[str]:
        found = page.filled(empty.format(which), lambda _: known)
        return [line.split(" |")[0] for line in found.splitlines()[3:-1]]

    assert rows("") == ["| a", "| b", "| c"]
    assert rows(" aims") == ["| a", "| b"]
    assert rows(" missed") == ["| b"]


@pytest.mark.parametrize(
    "failed", [{}, {"pytriton": "ended with 1 before it answered: Traceback | File x | ModuleNotFoundError: no y | "}]
)
def test_everybody_is_told_in_one_table(failed: dict[str, str]) -> None:
    samples = [
        {"part": "p", "round": n, "who": who, "what": what, "values": {"rate_per_s": rate}}
        for n, who, what, rate in (
            (0, "gateway", "S binary, 32 in flight", 1000.0),
            (1, "gateway", "S binary, 32 in flight", 3000.0),
            (0, "MLServer", "S JSON, 32 in flight", 50.25),
        )
    ]
    told = tables.rates({"samples": samples, "not measured": failed})
    assert "| gateway | 2,000 | |" in told
    assert "| MLServer | | 50.2 |" in told
    assert (
        "pytriton could not be measured: ended with 1 before it answered: ModuleNotFoundError: no y\n" in told
    ) is bool(failed)
