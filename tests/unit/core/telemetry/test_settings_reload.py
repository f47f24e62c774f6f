from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.logs import captured_lines

from firstline_core.errors import ConfigError
from firstline_core.storage.settings import load
from firstline_core.telemetry.settings_reload import SettingsReload


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: str = "info"
    format: str = "text"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: Log = Log()
    names: tuple[str, ...] = ()


class Process:
    """Settings in a file, and those that a process has applied."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "settings.toml"
        self.file.write_text("")
        self.applied: list[Settings] = []
        self.refuses = False
        self._reload = SettingsReload(load(Settings, file=self.file), self._read, self._apply, {"log.level"})

    def reload(self, text: str) -> list[tuple[str, str, str]]:
        """Returns the log: level, event, and the keys or the reason."""
        self.file.write_text(text)
        with captured_lines("info") as lines:
            asyncio.run(self._reload.reload())
        return [
            (line["level"], line["event"], line.get("applied") or line.get("keys") or line["why"]) for line in lines
        ]

    def _read(self) -> Settings:
        return load(Settings, file=self.file)

    async def _apply(self, settings: Settings) -> None:
        if self.refuses:
            raise ConfigError("Refused.")
        self.applied.append(settings)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def test_live_keys_are_applied_and_others_named(process: Process) -> None:
    said = process.reload('names = ["a"]\n[log]\nlevel = "error"\nformat = "json"\n')
    assert process.applied == [Settings(Log(level="error"))]
    assert said == [
        ("info", "configuration reloaded", "log.level"),
        ("warning", "settings changed that need a restart", "log.format, names"),
    ]


def test_unchanged_settings_are_applied_again(process: Process) -> None:
    """Files that they name, such as tokens and certificates, may have changed."""
    assert process.reload("") == [("info", "configuration reloaded", "nothing has changed")]
    assert process.applied == [Settings()]


@pytest.mark.parametrize(("text", "refuses"), [("[log]\nlevle = 1\n", False), ('[log]\nlevel = "error"\n', True)])
def test_invalid_settings_leave_the_running_ones(process: Process, text: str, refuses: bool) -> None:
    process.refuses = refuses
    [(level, event, why)] = process.reload(text)
    assert (level, event) == ("error", "configuration not reloaded")
    assert why == "Refused." if refuses else "did you mean 'level'?" in why
    assert process.applied == []
    process.refuses = False
    assert process.reload('[log]\nlevel = "debug"\n') == [("info", "configuration reloaded", "log.level")]
    assert process.applied == [Settings(Log(level="debug"))]
