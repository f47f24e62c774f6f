"""The parts of the hardware benchmark: each is there, tells what it ran, and leaves the others as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import Struct

from bench import figures, page
from bench.figures import Figure
from bench.hardware import run
from bench.hardware.run import Outcome, Part, by_model, whole
from bench.pools import DIGITS, Pair

CHECKOUT = Path(__file__).parents[3]


def told() -> str:
    return (CHECKOUT / "bench" / "results" / f"{run.TARGET}.json").read_text()


def test_every_part_was_measured_and_nothing_else() -> None:
    """One that fails is run by `make -C bench hardware BENCH_ARGS='--only PART'`."""
    parts = {row["figure"].partition(":")[0] for row in json.loads(told())["figures"]}
    assert parts == set(run.PARTS)
    assert set(json.loads(told())) - {"figures"} == set(run.PARTS)


@pytest.mark.parametrize("name", [name for name, part in run.PARTS.items() if part.figures is not None])
def test_what_is_told_follows_from_what_was_measured(name: str) -> None:
    said, part = json.loads(told()), run.PARTS[name]
    if name not in said:
        return  # the test above fails for that
    assert part.figures is not None
    rows = [row for row in said["figures"] if row["figure"].startswith(f"{name}: ")]
    found = [figure._asdict() for figure in figures.named(name, part.figures(said[name]))]
    assert [row["figure"] for row in rows] == [row["figure"] for row in found]
    for row, again in zip(rows, found, strict=True):
        assert row == {**again, "value": pytest.approx(again["value"]) if again["value"] is not None else None}


def test_documents_have_tables_of_parts_that_are_there() -> None:
    documents = [path.read_text() for path in (CHECKOUT / "docs").rglob("*.md")]
    parts = {part for text in documents for target, part in page.tables(text) if target == run.TARGET and part}
    assert parts and parts <= set(run.PARTS)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGES", tmp_path / "docs")
    return tmp_path / f"{run.TARGET}.json"


def much(value: float) -> list[Figure]:
    return [Figure("much", value, "s", "< 5", value < 5)]


def of(value: float) -> Part:
    return whole("it", lambda: (much(value), {"now": value}))


def rows(results: Path) -> dict[str, float]:
    return {row["figure"]: row["value"] for row in json.loads(results.read_text())["figures"]}


NOTHING = Part(lambda before, quick: Outcome(missing=("two was not run: there is no bread.",)))


def test_parts_run_one_after_the_other_and_what_was_not_run_stays(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": of(1), "two": of(2)})
    assert run.main([]) == 0
    assert rows(results) == {"one: much": 1, "two: much": 2}

    monkeypatch.setattr(run, "PARTS", {"one": of(9), "two": of(2)})
    capsys.readouterr()
    assert run.main(["--only", "one"]) == run.MISSED
    assert rows(results) == {"one: much": 9, "two: much": 2}
    assert json.loads(results.read_text())["one"] == {"now": 9}
    assert "two" not in capsys.readouterr().out, "what was not run now is not told"


def test_a_part_that_could_not_run_says_why_and_tells_nothing_of_before(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": of(9), "two": of(2)})
    run.main([])
    before = results.read_text()
    capsys.readouterr()
    monkeypatch.setattr(run, "PARTS", {"one": of(9), "two": NOTHING})
    assert run.main(["--only", "two"]) == run.NOT_RUN
    assert results.read_text() == before
    assert capsys.readouterr().out == "two was not run: there is no bread.\n"
    assert run.main([]) == run.NOT_RUN, "which outweighs an aim that is missed"


def test_a_part_that_measured_nothing_was_not_run(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": whole("one", lambda: ([], None))})
    assert run.main([]) == run.NOT_RUN
    assert capsys.readouterr().out.startswith("one was not run") and not results.exists()


def test_what_is_of_a_part_that_is_no_more_leaves(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": of(1), "olive": of(2)})
    run.main([])
    monkeypatch.setattr(run, "PARTS", {"one": of(3)})
    run.main([])
    assert rows(results) == {"one: much": 3}
    assert set(json.loads(results.read_text())) == {"one", "figures"}


def test_a_quick_run_writes_nothing(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": of(1)})
    assert run.main(["--quick"]) == 0
    assert not results.exists()


class Took(Struct):
    s: float


def models(value: float, second: Pair = DIGITS) -> Part:
    """Two models, each of which takes so long."""

    def measure(model: str, quick: bool) -> Took:
        return Took(value)

    return by_model(
        "part",
        {"a": DIGITS, "b": second},
        Took,
        measure=measure,
        figures=lambda records: [Figure(name, record.s, "s") for name, record in records.items()],
    )


def test_a_quick_run_measures_the_first_model(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"part": models(1)})
    assert run.main([]) == 0
    assert rows(results) == {"part: a": 1, "part: b": 1}
    capsys.readouterr()
    monkeypatch.setattr(run, "PARTS", {"part": models(2)})
    assert run.main(["--quick"]) == 0
    assert capsys.readouterr().out == "part: a: 2 s\n"
    assert rows(results) == {"part: a": 1, "part: b": 1}


def test_a_model_without_its_data_keeps_its_record(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PARTS", {"part": models(1)})
    assert run.main([]) == 0
    absent = Pair("b", "no-such-recipe", "b", "no-such-images")
    monkeypatch.setattr(run, "PARTS", {"part": models(2, absent)})
    assert run.main([]) == run.NOT_RUN
    assert rows(results) == {"part: a": 2, "part: b": 1}
