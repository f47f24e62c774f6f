"""The parts of the hardware benchmark: each is there, tells what it ran, and leaves the others as they were."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench import figures, page, parts
from bench.figures import Figure
from bench.hardware import prediction, run
from bench.hardware.controller import runs

CHECKOUT = Path(__file__).parents[3]


def told() -> str:
    return (CHECKOUT / "bench" / "results" / f"{run.TARGET}.json").read_text()


def test_every_part_was_measured_and_nothing_else() -> None:
    """One that fails is run by `make -C bench hardware BENCH_ARGS='--only PART'`."""
    assert {row["figure"].partition(":")[0] for row in json.loads(told())["figures"]} == set(run.PARTS)
    assert set(json.loads(told())) - {"figures"} == set(run.PARTS)


def test_figures_of_predictions_follow_from_what_was_measured() -> None:
    report = json.loads(told())
    rows = [row for row in report["figures"] if row["figure"].startswith("prediction: ")]
    records = msgspec.convert(report["prediction"], dict[str, list[prediction.Trial]])
    found = [figure._asdict() for figure in figures.named("prediction", prediction.figures(records))]
    assert [row["figure"] for row in rows] == [row["figure"] for row in found]
    for row, again in zip(rows, found, strict=True):
        assert row == {**again, "value": pytest.approx(again["value"])}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGES", tmp_path / "docs")
    return tmp_path / f"{run.TARGET}.json"


def much(value: float) -> list[Figure]:
    return [Figure("much", value, "s", "< 5", value < 5)]


def of(value: float) -> Callable[[bool], tuple[list[Figure], dict[str, float]]]:
    return lambda quick: (much(value), {"now": value})


def rows(results: Path) -> dict[str, float]:
    return {row["figure"]: row["value"] for row in json.loads(results.read_text())["figures"]}


def without_data(quick: bool) -> tuple[list[Figure], None]:
    return [], None


def test_parts_run_one_after_the_other_and_what_was_not_run_stays(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": of(1), "two": of(2)})
    assert run.main([]) == 0
    assert rows(results) == {"one: much": 1, "two: much": 2}

    monkeypatch.setattr(run, "PARTS", {"one": of(9), "two": of(2)})
    capsys.readouterr()
    assert run.main(["--only", "one"]) == parts.MISSED
    assert rows(results) == {"one: much": 9, "two: much": 2}
    assert json.loads(results.read_text())["one"] == {"now": 9}
    assert "two" not in capsys.readouterr().out, "what was not run now is not told"


def test_a_part_that_could_not_run_says_so_and_keeps_its_figures(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"one": of(9), "two": of(2)})
    run.main([])
    before = results.read_text()
    capsys.readouterr()
    monkeypatch.setattr(run, "PARTS", {"one": of(9), "two": without_data})
    assert run.main(["--only", "two"]) == parts.NOT_RUN
    assert results.read_text() == before
    assert capsys.readouterr().out == "two was not run, for the reason above.\n"
    assert run.main([]) == parts.NOT_RUN, "which outweighs an aim that is missed"


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


@pytest.mark.parametrize("name", run.PARTS)
def test_a_part_without_its_data_has_no_figures(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prediction, "DATA", tmp_path)
    monkeypatch.setattr(runs, "DATA", tmp_path)
    found, _ = run.PARTS[name](False)
    assert not found
    assert f"{name} is skipped: missing {tmp_path}" in capsys.readouterr().err
