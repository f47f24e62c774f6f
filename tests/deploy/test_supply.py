"""The bills of materials say what the locks say."""

import json
import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
REQUIREMENTS = CHECKOUT / "requirements"
_ADDRESS = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9._~-]+)*/?(#[a-z]+)?")
"""All addresses of a bill, which are a small part of what RFC 3987 allows."""


def test_a_bill_of_materials_is_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # a second, which every process of pytest would take
    from jsonschema import Draft7Validator

    monkeypatch.setitem(Draft7Validator.FORMAT_CHECKER.checkers, "iri-reference", (_ADDRESS.fullmatch, ()))
    # Each process would have to read the schema.
    command = ["make", "--silent", "bills", f"DIST={tmp_path}", "VALIDATE=--no-validate"]
    subprocess.run(command, cwd=CHECKOUT, check=True)
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    bills = sorted(tmp_path.glob("*.cdx.json"))
    assert len(bills) == 4
    for each in bills:
        assert validator.validate_str(each.read_text()) is None, each
    bill = json.loads((tmp_path / "firstline-edge.cdx.json").read_text())
    assert (bill["specVersion"], bill["metadata"]["component"]["name"]) == ("1.6", "firstline")
    lock = (REQUIREMENTS / "edge.lock").read_text()
    pins = set(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    assert {(component["name"], component["version"]) for component in bill["components"]} == pins
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))
    listed = json.dumps(bill["components"])
    assert all(one in listed for one in hashes)
