from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline_core.routing.certificate import certify


def _run(*arguments: object, table: str | None = None, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["certify", *map(str, arguments)], input=table)
    assert result.exit_code == code, result.output
    return result


def _table(rows: int, errors: int = 0) -> str:
    return "score,agree\n" + "".join(f"{0.9},{int(row >= errors)}\n" for row in range(rows))


def test_the_contract_of_the_output(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    scores, agree = random.random(1000), random.random(1000) < 0.99
    file = tmp_path / "scores.csv"
    file.write_text("id,agree,score\n" + "".join(f"x,{int(a)},{s}\n" for s, a in zip(scores, agree, strict=True)))
    promise = ("--scores", file, "--epsilon", 0.05, "--delta", 0.05, "-o", "json")
    found = msgspec.json.decode(_run(*promise).stdout)
    assert list(found) == ["certified", "threshold", "kept", "risk_upper", "n", "n_needed"]
    assert (found["certified"], found["n"], found["n_needed"]) == (True, 1000, 0)
    assert found["kept"] == np.mean(scores >= found["threshold"])
    assert found["threshold"] == certify(scores, ~agree, 0.05, 0.05).threshold

    part = msgspec.json.decode(_run(*promise, "--select", 0.2, "--seed", 3).stdout)
    assert part["n"] == 800


def test_what_is_not_certified_also_exits_0() -> None:
    promise = ("--scores", "-", "--epsilon", 0.01, "--delta", 0.05)
    found = msgspec.json.decode(_run(*promise, "-o", "json", table=_table(100)).stdout)
    assert found == {
        "certified": False, "threshold": None, "kept": 0.0, "risk_upper": None, "n": 100, "n_needed": 199,
    }  # fmt: skip
    assert "at least 199 more rows" in _run(*promise, table=_table(100)).stdout
    assert "Certified on 299 rows" in _run(*promise, table="\ufeff" + _table(299)).stdout


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("", "standard input:1 has no column score and agree"),
        ("score\n1\n", "standard input:1 has no column agree"),
        ("score,agree\n", "no rows"),
        ("score,agree\n0.5,1\nhigh,1\n", "standard input:3 has the score 'high'"),
        ("score,agree\nnan,1\n", "standard input:2 has the score 'nan'"),
        ("score,agree\n0.5,yes\n", "standard input:2 has 'yes' under agree"),
        ("score,agree\n0.5\n", "standard input:2 has '' under agree"),
        ('score,agree\n"0.5,1\n', "is not CSV"),
    ],
)
def test_a_bad_table_gets_a_sentence_with_its_line(table: str, says: str) -> None:
    result = _run("--scores", "-", "--epsilon", 0.05, "--delta", 0.05, table=table, code=2)
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_arguments_get_a_sentence(tmp_path: Path) -> None:
    assert "cannot be read" in _run("--scores", tmp_path / "no", "--epsilon", 0.1, "--delta", 0.1, code=2).stderr
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in _run("--scores", tmp_path / "bytes", "--epsilon", 0.1, "--delta", 0.1, code=2).stderr
    for epsilon, select in ((0, 0.1), (0.1, 1.5)):
        promise = ("--scores", "-", "--epsilon", epsilon, "--delta", 0.1, "--select", select)
        assert "must be above 0 and below 1" in _run(*promise, table=_table(9), code=2).stderr
