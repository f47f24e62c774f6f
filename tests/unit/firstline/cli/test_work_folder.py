"""The folder of a long command goes with it, whatever ends it."""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstline.cli.work_folder import work_folder
from firstline_core.errors import ConfigError

_ENDS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The parent process may ignore one of them (nohup).
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _ENDS}
    yield
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.parametrize("number", _ENDS)
def test_signals_delete_a_work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    before, tidied = signal.getsignal(number), tempfile.TemporaryDirectory.cleanup

    def again(folder: tempfile.TemporaryDirectory[str]) -> None:
        os.kill(os.getpid(), number)  # of an impatient caller, while the folder is tidied away
        tidied(folder)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", again)
    with pytest.raises(SystemExit) as ended, work_folder() as folder:
        (work,) = tmp_path.iterdir()
        assert work.name.startswith("firstline-compress-")
        assert folder.parent == work
        assert os.environ["TMPDIR"] == tempfile.gettempdir()
        tempfile.mkdtemp()  # as a quantiser's, whose tidying was interrupted
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert tempfile.tempdir == str(tmp_path)
    assert signal.getsignal(number) == before


def test_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    with work_folder() as folder:
        os.kill(os.getpid(), signal.SIGHUP)
        assert folder.is_dir()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_other_threads_do_not_change_signal_handlers(tmp_path: Path) -> None:
    seen: list[Path] = []

    def work() -> None:
        with work_folder() as folder:
            seen.append(folder)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert list(tmp_path.iterdir()) == []


def test_unusable_temporary_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with (
        pytest.raises(ConfigError, match=r"the work in .*none failed: there is no such file or folder; TMPDIR"),
        work_folder(),
    ):
        pytest.fail("there is no folder")
