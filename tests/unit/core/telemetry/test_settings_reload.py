import asyncio
from pathlib import Path

import msgspec
import pytest
from support.logs import captured_lines
from support.waiting import until

from firstline_core.errors import ConfigError
from firstline_core.storage.setting_places import Sources
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
        self.fails = False
        self.attempts = 0
        self.settings_reload = SettingsReload(
            load(Settings, Sources(self.file)), self._read, self._apply, lambda: {"log.level"}
        )

    def reload(self, text: str) -> list[tuple[str, str, str]]:
        """Returns the log: level, event, and the keys or the reason."""
        self.file.write_text(text)
        with captured_lines("info") as lines:
            asyncio.run(self.settings_reload.reload())
        return [
            (line["level"], line["event"], line.get("applied") or line.get("keys") or line["why"]) for line in lines
        ]

    def _read(self) -> Settings:
        return load(Settings, Sources(self.file))

    async def _apply(self, settings: Settings) -> list[str]:
        self.attempts += 1
        if self.fails:
            raise ZeroDivisionError
        if self.refuses:
            raise ConfigError("Refused.")
        self.applied.append(settings)
        return ["tokens"]


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def test_live_keys_are_applied_and_others_named(process: Process) -> None:
    lines = process.reload('names = ["a"]\n[log]\nlevel = "error"\nformat = "json"\n')
    assert process.applied == [Settings(Log(level="error"))]
    assert lines == [
        ("info", "configuration reloaded", "log.level"),
        ("warning", "settings changed that need a restart", "log.format, names"),
    ]


def test_unchanged_settings_are_applied_again(process: Process) -> None:
    """Files that they name, such as tokens and certificates, may have changed."""
    with captured_lines("info") as lines:
        asyncio.run(process.settings_reload.reload())
    [line] = lines
    assert (line["event"], line["applied"], line["files_read"]) == ("configuration reloaded", "none", "tokens")
    assert process.applied == [Settings()]


def test_a_fault_is_logged_and_the_next_request_still_works(process: Process) -> None:
    async def requests() -> None:
        requested = asyncio.Event()
        task = asyncio.create_task(process.settings_reload.keep(requested))
        for process.fails in (True, False):
            attempts = process.attempts
            requested.set()
            await until(lambda before=attempts: process.attempts > before)
        task.cancel()

    with captured_lines("info") as lines:
        asyncio.run(requests())
    assert [(line["level"], line["event"]) for line in lines] == [
        ("error", "configuration not reloaded"),
        ("info", "configuration reloaded"),
    ]


@pytest.mark.parametrize(("text", "refuses"), [("[log]\nlevle = 1\n", False), ('[log]\nlevel = "error"\n', True)])
def test_invalid_settings_leave_the_running_ones(process: Process, text: str, refuses: bool) -> None:
    process.refuses = refuses
    [(level, event, why)] = process.reload(text)
    assert (level, event) == ("error", "configuration not reloaded")
    assert why == "Refused." if refuses else "did you mean 'log.level'?" in why
    assert process.applied == []
    process.refuses = False
    assert process.reload('[log]\nlevel = "debug"\n') == [("info", "configuration reloaded", "log.level")]
    assert process.applied == [Settings(Log(level="debug"))]
