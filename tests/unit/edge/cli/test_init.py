"""The first configuration of a device: twelve lines, valid, and never written over another."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from support.agent import DIGITS

from firstline_edge.__main__ import main
from firstline_edge.settings.load import load


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["edge-agent", *arguments])
    return main()


def test_init_writes_five_settings_that_doctor_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "edge-agent.toml"
    assert run(monkeypatch, "init", "--config", str(file), "-o", "json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"event": "written", "file": str(file), "next": f"edge-agent run --config {file}"}
    text = file.read_text()
    assert len(text.splitlines()) == 12
    assert sum(len(section) for section in tomllib.loads(text).values()) == 5
    settings = load(file, environ={})
    assert (settings.api.port, settings.models.directories) == (8070, (str(tmp_path / "models"),))
    file.write_text(text + "# changed since")
    assert run(monkeypatch, "init", "--config", str(file)) == 2
    assert file.read_text() == text + "# changed since"
    assert {each.name for each in tmp_path.iterdir()} == {file.name, "models"}
    shutil.copytree(DIGITS, tmp_path / "models" / "digits")
    assert run(monkeypatch, "doctor", "--config", str(file), "--set", "api.port=0") == 0
