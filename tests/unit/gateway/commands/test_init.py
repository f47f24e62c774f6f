"""The first configuration of a gateway: twelve lines, valid, and never written over another."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from support.agent import DIGITS

from firstline_gateway.__main__ import main


def test_init_writes_five_settings_that_check_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    assert main(["init", "--config", str(file), "-o", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"event": "written", "file": str(file), "next": f"firstline-gateway run --config {file}"}
    text = file.read_text()
    assert len(text.splitlines()) == 12
    assert sum(len(section) for section in tomllib.loads(text).values()) == 5
    file.write_text(text + "# changed since")
    assert main(["init", "--config", str(file)]) == 2
    assert file.read_text() == text + "# changed since"
    assert {each.name for each in tmp_path.iterdir()} == {file.name, "models"}
    shutil.copytree(DIGITS, tmp_path / "models" / "digits")
    assert main(["check", "--config", str(file)]) == 0
