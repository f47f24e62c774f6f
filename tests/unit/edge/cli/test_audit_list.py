"""Audits in the output of status, doctor and explain, and the table for a new certificate."""

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agent import edge_settings

from bench.support.bundles import with_certificate
from firstline_core.bundle.manifest import MANIFEST_NAME, parse_manifest
from firstline_core.bundle.store import Bundle
from firstline_core.routing import audit
from firstline_edge.audits import records
from firstline_edge.audits.records import CertificateRecord, CertificateState, EventRecord, record_key
from firstline_edge.audits.samples import Sample, SampleLog
from firstline_edge.cli import audit_list
from firstline_edge.cli.doctor_models import contract_findings
from firstline_edge.cli.explain import describe
from firstline_edge.cli.findings import Severity
from firstline_edge.cli.parser import parse
from firstline_edge.cli.status import _contract_lines
from firstline_edge.state import StatePaths

CONTRACT: dict[str, Any] = {
    "alarm": False, "cause": None, "since": None, "tightened": None, "escalates_all": False,
    "escalations_per_hour": None, "epsilon": 0.05, "e_value": 0.3123, "alarm_at": 10.0,
    "audits": {"drawn": 5, "agreed": 3, "disagreed": 1, "lost": 1}, "drift": None, "events": {},
}  # fmt: skip
ALARMED = CONTRACT | {"alarm": True, "since": "2026-11-21T00:00:00Z", "escalations_per_hour": 360.0}


def test_status_shows_the_audits() -> None:
    (line,) = _contract_lines(CONTRACT)
    assert line == "audits: 5 drawn, 3 agreed, 1 disagreed, 1 lost; evidence 0.312, alarm at 10"
    drifted = _contract_lines(CONTRACT | {"drift": {"index": 0.31, "word": "large"}})
    assert drifted[1] == "scores: large (stability index 0.31)"


def test_status_shows_the_events_with_most_evidence() -> None:
    events = {
        f"missed {number}": {"epsilon": 0.05, "counted": number, "lost": 1, "e_value": float(number)}
        for number in range(1, 11)
    }
    first, *_, last, total = _contract_lines(CONTRACT | {"events": events})
    assert first == "missed 10: 1 of 10 audits in which it can occur, at most 5 % promised; evidence 10"
    assert last == "and 2 events more with less evidence"
    assert total.startswith("audits: 5 drawn, 3 agreed, 1 with any difference, which is not promised, 1 lost; evidence")


@pytest.mark.parametrize(
    ("contract", "effect"),
    [
        ({"escalates_all": True}, "no edge answer is accepted"),
        ({"tightened": 0.9}, "fewer edge answers are accepted"),
        ({}, "edge answers are accepted as before"),
    ],
)
def test_status_shows_the_effect_of_a_void_certificate(contract: dict[str, Any], effect: str) -> None:
    line = _contract_lines(ALARMED | contract)[-1]
    assert line.startswith(
        f"certificate void since 2026-11-21T00:00:00Z: {effect}, at most 360 more escalations an hour"
    )


def test_status_shows_why_a_certificate_is_void_and_the_evidence_since() -> None:
    audits, alarm = _contract_lines(ALARMED | {"cause": "9 of 20 audits on this device disagreed", "e_value": 1.0})
    assert audits.endswith("evidence 1 in a new test, alarm at 10")
    assert alarm.startswith(
        "certificate void since 2026-11-21T00:00:00Z (9 of 20 audits on this device disagreed): edge answers"
    )


def test_explain_shows_the_result_of_an_audit() -> None:
    line = {
        "at": 1_800_000_000.0, "event": "audited", "request_id": "r", "audit_id": "a", "model": "m", "version": "1",
        "row": 2, "score": 0.9, "propensity": 0.02, "outcome": "disagreed",
    }  # fmt: skip
    (sentence,) = describe(line)
    assert sentence.endswith("Row 2 was audited: the full model disagreed (drawn with probability 0.02, as a).")
    (sentence,) = describe(line | {"outcome": "lost", "cause": "No link works."})
    assert sentence.endswith("no answer came (drawn with probability 0.02, as a). Why: No link works.")


def sample(**fields: Any) -> Sample:
    defaults = {"key": "k", "model": "m", "version": "1", "at": 0.0, "score": 0.9, "agree": 1, "propensity": 0.25}
    return Sample(**(defaults | {"kept": True} | fields))


def written(tmp_path: Path, *samples: Sample) -> None:
    log = SampleLog(StatePaths(tmp_path).samples_path, 1 << 20)
    for one in samples:
        log.add(one)
    log.close()


def run(tmp_path: Path, *arguments: str) -> int:
    return audit_list.command(parse(["audit", "list", "--set", f"agent.state_dir={tmp_path}", *arguments]))


def test_the_table_is_of_the_newest_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, sample(key="old"), sample(), sample(score=0.5, agree=0, kept=False))
    assert run(tmp_path) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert rows == [
        {"score": "0.9", "agree": "1", "weight": "4.0", "kept": "1", "certificate": "k"},
        {"score": "0.5", "agree": "0", "weight": "4.0", "kept": "0", "certificate": "k"},
    ]
    written(tmp_path, sample(agree=0.75, events={"missed a": 1.0}))
    assert run(tmp_path) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["missed a"] for row in rows] == ["", "", "1.0"]  # in the others it could not occur
    assert [row["agree"] for row in rows] == ["1", "0", "0.75"]  # a loss of 0.25, of a task whose loss has grades
    assert run(tmp_path, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], len(found["rows"]), found["rows"][1]["kept"]) == ("m", 3, 0)


def test_older_samples_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, sample(at=1_800_000_000.0), sample(at=1_800_000_060.0, score=0.5))  # 2027-01-15, 08:00 and later
    for since in ("2027-01-15T08:00:30Z", "2027-01-15T08:00:30", "2027-01-15T09:00:30+01:00"):
        assert run(tmp_path, "--since", since, "-o", "json") == 0
        assert [row["score"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0.5]
    assert run(tmp_path, "--since", "2027-01-15T08:02:00Z") == 1
    assert "None of its 2 answers is so new" in capsys.readouterr().err


def test_a_missing_table_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 1
    assert "No answer was audited" in capsys.readouterr().err
    written(tmp_path, sample(), sample(model="n"))
    assert run(tmp_path) == 1
    assert "Name a model with --model; there are m, n." in capsys.readouterr().err
    assert run(tmp_path, "--model", "x") == 1
    assert "No answer of a model 'x' is known; there are those of m, n." in capsys.readouterr().err
    assert run(tmp_path, "--model", "n") == 0


def test_a_damaged_line_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, sample())
    with StatePaths(tmp_path).samples_path.open("a") as stream:
        stream.write('{"key": 3}\n{"cut\n')
    written(tmp_path, sample(propensity=0.0), sample(agree=2))
    written(tmp_path, sample(score=0.7))
    assert run(tmp_path, "-o", "json") == 0
    assert [row["score"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0.9, 0.7]


def test_doctor_reports_an_alarm_of_a_bundle_in_use(tmp_path: Path) -> None:
    original = parse_manifest((Path(__file__).parents[4] / "models/digits/bundle" / MANIFEST_NAME).read_bytes())
    variant = with_certificate(original.edge[0], original)
    manifest = msgspec.structs.replace(original, edge=(variant,))
    settings, bundles = edge_settings(tmp_path / "state"), [Bundle(tmp_path, manifest)]
    assert list(contract_findings(settings, bundles)) == []
    assert variant.certificate is not None
    key = record_key(manifest.name, str(manifest.version), variant.certificate)
    record = CertificateRecord(
        model=manifest.name, version="1", events={"": EventRecord(audit.begin(0.05))}, agreed=7, disagreed=3
    )
    path = StatePaths(tmp_path / "state").certificates_path
    path.parent.mkdir(parents=True)
    records.RecordFile(path).write(records.encode({key: record, "gone": record}, ()))
    (finding,) = contract_findings(settings, bundles)
    assert (finding.severity, finding.detail) == (Severity.OK, "10 audits, 3 disagreed")
    record.state = CertificateState("broken_on_device", "because")
    records.RecordFile(path).write(records.encode({key: record}, ()))
    (finding,) = contract_findings(settings, bundles)
    assert finding.severity is Severity.WARNING and "its certificate is void: because" in finding.detail
    path.write_text("{")
    (finding,) = contract_findings(settings, bundles)
    assert finding.severity is Severity.WARNING and str(path) in finding.detail
