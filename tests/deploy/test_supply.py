"""The bills of materials say what the locks say; an audit without a lookup does not pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import audit, sbom

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


@pytest.mark.parametrize("extra", ["edge"])
def test_a_bill_of_materials_is_the_lock(extra: str, tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # two seconds, which every process of pytest would take

    path = sbom.write(extra, tmp_path)
    text = path.read_text()
    bill = json.loads(text)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert (bill["specVersion"], bill["metadata"]["component"]["name"]) == ("1.6", "firstline")
    lock = (REQUIREMENTS / f"{extra}.lock").read_text()
    pins = set(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    assert {(component["name"], component["version"]) for component in bill["components"]} == pins
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))
    listed = json.dumps(bill["components"])
    assert all(one in listed for one in hashes)
    (root,) = (entry for entry in bill["dependencies"] if entry["ref"] == bill["metadata"]["component"]["bom-ref"])
    names = {component["bom-ref"]: component["name"] for component in bill["components"]}
    assert (
        {"httptools", "httpx", "numpy", "onnxruntime"}
        <= {names[ref] for ref in root["dependsOn"]}
        < set(names.values())
    )


def test_vulnerable_and_unknown_packages_are_reported() -> None:
    advisory = {"id": "PYSEC-1", "fix_versions": ["1.1", "2.0"], "aliases": [], "description": ""}
    unfixed = {"id": "PYSEC-2", "fix_versions": [], "aliases": [], "description": ""}
    found = audit.verdict(
        {
            "dependencies": [
                {"name": "a", "version": "1.0", "vulns": [advisory, unfixed]},
                {"name": "b", "version": "2.0", "vulns": []},
                {"name": "c", "skip_reason": "Dependency not found"},
            ],
            "fixes": [],
        }
    )
    assert found.known == 2
    assert found.unknown == ["c"]
    assert found.advisories == [
        "a 1.0: PYSEC-1 (fixed in 1.1, 2.0)",
        "a 1.0: PYSEC-2 (fixed in no version yet)",
    ]


@pytest.mark.parametrize(
    ("answer", "says", "code"),
    [
        (audit.Verdict(3, [], []), "edge.lock: 3 packages, no advisories.", 0),
        (audit.Verdict(0, ["a", "b", "c", "d"], []), "0 of 4 packages were looked up", 1),
        (audit.Verdict(1, [], ["a 1: X (fixed in 2)"]), "edge.lock: a 1: X (fixed in 2)", 1),
        ("pip-audit could not audit edge.lock: no such host", "no such host", 1),
    ],
)
def test_only_a_whole_and_clean_audit_succeeds(
    answer: audit.Verdict | str,
    says: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(audit, "audited", lambda _lock: answer)
    assert audit.main() == code
    assert says in capsys.readouterr().out
