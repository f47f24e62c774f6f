"""Pages tell what was measured, and a missed aim is listed and explained on the page about performance."""

from pathlib import Path

import pytest

from bench import page
from bench.figures import Figure, measured
from bench.fleet.run import TARGET as FLEET
from bench.hardware import run as hardware
from bench.serving import tables
from bench.serving.run import PARTS

QUOTING = [path for path in sorted(page.PAGES.rglob("*.md")) if page.tables(path.read_text())]
TEXT = tables.PAGE.read_text()
KNOWN = [
    Figure("x: a: size", 1234, "bytes"),
    Figure("x: a: b: size", 617, "bytes"),
    Figure("x: a: b: times smaller", 2.0004, "times", ">= 4", False),
    Figure("x: ab: size", 5, "bytes"),
    Figure("x: lost", 0, "", "0", True),
    Figure("y: memory", 1234.5, "MiB"),
]


@pytest.mark.parametrize("path", QUOTING, ids=lambda path: path.stem)
def test_the_figures_of_a_page_are_the_measured_ones(path: Path) -> None:
    text = path.read_text()
    assert tables.filled(text) == text, "run `make -C bench TARGET` of the table, or restore bench/results/*.json"


def test_every_part_of_a_benchmark_has_its_table() -> None:
    quoted = {table for path in QUOTING for table in page.tables(path.read_text())}
    assert {("serving", part) for part in PARTS} <= quoted
    assert {part for target, part in quoted if target == hardware.TARGET and part} == set(hardware.PARTS)
    assert {part for target, part in quoted if target == FLEET} == {"judged", "simulated"}
    assert {target for target, _ in page.tables(TEXT)} >= {"serving", "peers"}


def test_what_is_missed_is_listed_and_explained() -> None:
    _, _, short = TEXT.partition("## What falls short\n")
    missed = [figure.figure for target in ("serving", "peers") for figure in measured(target) if figure.holds is False]
    assert [figure for figure in missed if f"| {figure} |" not in short] == []
    assert short.rpartition("<!-- end -->")[2].strip(), "say why, and what would be needed"


@pytest.mark.parametrize(
    ("marker", "rows"),
    [
        ("figures: t/y", ["| figure | measured | aim |", "|---|---|---|", "| memory | 1,234.5 MiB | |"]),
        (
            "figures: t/x aims",
            [
                *("| figure | measured | aim |", "|---|---|---|"),
                *("| a: b: times smaller | 2.0004 times | >= 4: missed |", "| lost | 0 | 0 |"),
            ],
        ),
        (
            "figures: t missed",
            [
                *("| figure | measured | aim |", "|---|---|---|"),
                "| x: a: b: times smaller | 2.0004 times | >= 4: missed |",
            ],
        ),
        (
            "columns: t/x: a | size | times smaller",
            [
                *("| | size | times smaller |", "|---|---|---|"),
                *("| itself | 1,234 bytes | |", "| b | 617 bytes | 2 times: missed |"),
            ],
        ),
        ("columns: t/z | size", []),
        ("figures: t/z", []),
    ],
)
def test_a_table_is_filled_with_its_own_figures(marker: str, rows: list[str]) -> None:
    text = f"a\n<!-- {marker} -->\nold\n<!-- end -->\nb"
    assert page.filled(text, {"t": KNOWN}.__getitem__).splitlines() == [
        "a",
        f"<!-- {marker} -->",
        *rows,
        "<!-- end -->",
        "b",
    ]


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
    text = tables.rates({"samples": samples, "not measured": failed})
    assert "| gateway | 2,000 | |" in text
    assert "| MLServer | | 50.2 |" in text
    sentence = "pytriton could not be measured: ended with 1 before it answered: ModuleNotFoundError: no y\n"
    assert (sentence in text) is bool(failed)
