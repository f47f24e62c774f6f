"""The parts of the hardware benchmark: each is there, is told of, and leaves the others' figures as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import figures
import page
import pytest
from figures import Figure
from hardware import run

CHECKOUT = Path(__file__).parents[3]


def told() -> str:
    return (CHECKOUT / "bench" / "results" / f"{run.TARGET}.json").read_text()


def test_what_was_measured_is_of_parts_that_are_there() -> None:
    parts = {row["figure"].partition(":")[0] for row in json.loads(told())["figures"]}
    assert parts and parts <= set(run.PARTS)
    assert set(json.loads(told())) - {"figures"} <= set(run.PARTS)


def test_documents_have_tables_of_parts_that_are_there() -> None:
    documents = [path.read_text() for path in (CHECKOUT / "docs").glob("*.md")]
    parts = {part for text in documents for target, part in page.tables(text) if target == run.TARGET and part}
    assert parts and parts <= set(run.PARTS)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setattr(run, "PLOTS", tmp_path / "plots")
    return tmp_path / f"{run.TARGET}.json"


def part(value: float, beside: Any) -> Any:
    return lambda before, said: ([Figure("much", value, "s", "< 5", value < 5)], {"before": before, "now": beside})


def test_parts_run_one_after_the_other_and_what_was_not_run_stays(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": part(1, "a"), "two": part(2, "b"), "left_out": lambda *_: ([], {})})
    assert run.main([]) == 0
    found = json.loads(results.read_text())
    assert [(row["figure"], row["value"]) for row in found["figures"]] == [("one: much", 1), ("two: much", 2)]

    monkeypatch.setattr(run, "PARTS", {"one": part(9, "c"), "two": lambda *_: ([], {})})
    assert run.main(["--only", "two", "one"]) == 1, "an aim is missed"
    found = json.loads(results.read_text())
    assert {row["figure"]: row["value"] for row in found["figures"]} == {"one: much": 9, "two: much": 2}
    assert found["one"]["now"] == "c" and found["one"]["before"]["now"] == "a" and found["two"]["now"] == "b"
