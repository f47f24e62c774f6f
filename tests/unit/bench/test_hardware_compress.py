"""What is told of candidates: which meet the aim, and what a run lacked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hardware import compress, olive
from hardware.compress import CIFAR10, DIGITS, TAUGHT, Record, Technique, figures, lacks, lost
from hardware.parts import Asked, NotRunError

from firstline.workbench.compress.compression import Promise
from firstline.workbench.compress.judge import Figures

SOURCE = Figures("resnet56", 0.82, 4.0, 8000)


def record(*techniques: Technique, **more: object) -> Record:
    return Record("resnet56", Promise(0.05, 0.05, "disagreement"), (50, 20, 30), (SOURCE,), techniques, **more)


def technique(name: str, *, faster: float = 1.0, smaller: float = 1.0, accepted: bool = True) -> Technique:
    made = Figures(f"resnet56-{name}", 0.81, SOURCE.latency_ms / faster, round(SOURCE.size_bytes / smaller))
    return Technique(name, made, accepted, (), {})


def best(**records: Record) -> dict[str, tuple[float | None, str, bool | None]]:
    found = figures({{"cut": CIFAR10.name, "taught": TAUGHT.name}[name]: each for name, each in records.items()})
    return {one.figure: (one.value, one.unit, one.holds) for one in found if one.figure.startswith("CIFAR")}


AIM = "CIFAR full model: accepted candidates that are it within 2 points"


def test_only_what_is_accepted_meets_the_aim() -> None:
    refused = record(technique("student", faster=9, smaller=9, accepted=False), technique("fp16", smaller=2))
    found = best(cut=refused)
    assert found[AIM] == (0, "", False)
    assert found["CIFAR full model: smallest accepted within 2 points"][0] == 2


def test_there_is_one_aim_over_all_ways_and_it_says_which_met_it() -> None:
    met = record(technique("student-static-int8", smaller=11))
    found = best(cut=record(technique("static-int8", faster=2)), taught=met)
    assert found[AIM] == (1, "(cifar10-cascade resnet20: student-static-int8)", True)
    aims = [one for one in figures({CIFAR10.name: record(technique("static-int8")), TAUGHT.name: met}) if one.aim]
    assert [one.figure for one in aims] == [AIM]


def test_what_loses_too_much_does_not_meet_it() -> None:
    lossy = Technique("student", Figures("s", 0.79, 0.1, 10), True, (), {})
    assert best(cut=record(lossy)) == {AIM: (0, "", False)}


def test_digits_alone_have_no_such_aim() -> None:
    assert not [one for one in figures({DIGITS.name: record()}) if one.figure.startswith("CIFAR")]


def test_a_run_without_students_or_olive_says_so_and_takes_no_ones_place() -> None:
    plain = record(technique("static-int8"))
    full = record(technique("static-int8"), technique("student"), *(technique(name) for name in olive.PASSES))
    assert "PyTorch" in lacks(CIFAR10.name, plain) and lacks(CIFAR10.name, full) == ""
    assert "Olive" in lacks(CIFAR10.name, record(technique("student")))
    assert lacks(TAUGHT.name, record(technique("student"))) == "", "Olive has its models in another record"
    assert "student" in lost(full, plain) and lost(plain, full) == ""


def test_what_each_made_is_told_beside_the_source() -> None:
    failed = Technique("olive-dynamic-int8", None, False, ("olive run ended with 1",), {})
    theirs = record(
        technique("olive-fp16", faster=2, smaller=2),
        failed,
        olive_s={"olive-fp16": 31.26},
        installed=olive.Installed(5000, 100),
    )
    found = {one.figure: one.value for one in figures({"pair": theirs})}
    assert found["pair: olive-fp16: times faster"] == 2.0
    assert found["pair: olive-fp16: times smaller"] == 2.0
    assert found["pair: olive-fp16: to make it"] == 31.3
    assert found["pair: Olive installed"] == 5000
    assert not any("olive-dynamic-int8" in name for name in found)


def test_a_process_that_fails_measured_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "_python", lambda: Path("/bin/false"))
    with pytest.raises(NotRunError, match="ended with 1"):
        compress.measure(DIGITS.name, Asked())


def test_it_runs_where_pytorch_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compress, "can_train", lambda: False)
    monkeypatch.setattr(compress, "_CHECKOUT", tmp_path)
    assert compress._python() == Path(sys.executable)
    (python := tmp_path / ".venv-train" / "bin" / "python").parent.mkdir(parents=True)
    python.touch()
    assert compress._python() == python
    monkeypatch.setattr(compress, "can_train", lambda: True)
    assert compress._python() == Path(sys.executable)
