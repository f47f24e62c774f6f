"""The state of a model or of the configuration: what may follow, and the file that holds it."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.updates import full_disk

from firstline_core.errors import IntegrityError
from firstline_core.fleet.twin import DesiredModel
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.files import with_checksum
from firstline_core.storage.structs import read_struct, write_struct
from firstline_edge.fleet.updates.installed import Installed, InstalledFile, UpdateRecord
from firstline_edge.fleet.updates.model_store import Slot

KIND = Installed[Slot, DesiredModel]
RECORD = UpdateRecord(DesiredModel("digits", 2, "a" * 64), UpdateState.STAGED)
STAGED = KIND("a", "a", None, "b", RECORD)
COMMITTED = KIND("b", "a", None, None, replace(RECORD, state=UpdateState.COMMITTED))


def test_a_written_state_is_read(tmp_path: Path) -> None:
    state = STAGED.begin_trial(3, 1.0).started(2.0)
    write_struct(tmp_path / "digits" / "state", state)
    assert read_struct(tmp_path / "digits" / "state", KIND) == state
    assert (state.running, state.previous, state.trial_tries, state.staged) == ("b", "a", 3, None)
    assert state.record is not None and state.record.tries == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{}x\n", b"\xff", with_checksum(b'{"running": "c"}'), with_checksum(b'{"running": "a", "format": 2}')],
)
def test_a_damaged_state_is_detected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(IntegrityError, match="state"):
        read_struct(tmp_path / "state", KIND)


def test_nothing_is_tried_that_was_not_staged_or_during_a_trial() -> None:
    for state in (COMMITTED, replace(STAGED.begin_trial(3, 1.0), staged="a")):
        with pytest.raises(ValueError, match="nothing is staged"):
            state.begin_trial(3, 2.0)


def test_neither_what_runs_nor_the_rollback_target_is_overwritten() -> None:
    with pytest.raises(ValueError, match="runs and cannot be overwritten"):
        COMMITTED.begin_install("b", RECORD)
    with pytest.raises(ValueError, match="still what a rollback leads to"):
        replace(COMMITTED, staged="a", record=RECORD).begin_trial(3, 1.0)
    begun = COMMITTED.begin_install("a", RECORD)
    assert (begun.running, begun.previous, begun.staged) == ("b", "b", "a")
    assert begun.begin_trial(3, 1.0).previous == "b"


def test_a_start_without_tries_left_ends_the_trial() -> None:
    trial = STAGED.begin_trial(1, 1.0)
    assert trial.started(2.0).in_trial
    ended = trial.started(2.0).started(3.0)
    assert (ended.running, ended.previous, ended.in_trial) == ("a", "a", False)
    assert ended.record is not None and (ended.record.state, ended.record.reason) == (UpdateState.ROLLED_BACK, "tries")


def test_a_second_rollback_leads_to_the_original() -> None:
    assert COMMITTED.rolled_back("asked", "", 1.0).running == "a"
    assert COMMITTED.rolled_back("asked", "", 1.0).rolled_back("damaged", "", 2.0).running is None


def test_only_an_update_in_progress_has_something_staged() -> None:
    for state in UpdateState:
        expected = state in (UpdateState.DOWNLOADING, UpdateState.VERIFIED, UpdateState.STAGED, UpdateState.TRIAL)
        assert (STAGED.with_record(replace(RECORD, state=state)).staged is not None) is expected


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_struct(tmp_path / "digits" / "state", STAGED)
    return tmp_path / "digits" / "state"


def test_a_copy_replaces_a_damaged_or_missing_file(path: Path) -> None:
    InstalledFile(path, KIND).write(COMMITTED)
    for content in (b"x\ny\n", None):
        path.unlink() if content is None else path.write_bytes(content)
        assert InstalledFile(path, KIND, repair=False).state == COMMITTED
        file = InstalledFile(path, KIND)
        assert file.state == COMMITTED and not path.exists()
        assert file.retry_write() and on_disk(path) == COMMITTED
    assert path.with_name("state.damaged").read_bytes() == b"x\ny\n"


def test_a_copy_that_a_power_cut_left_behind_is_replaced(path: Path) -> None:
    InstalledFile(path, KIND).write(STAGED)
    write_struct(path, COMMITTED)
    file = InstalledFile(path, KIND)
    assert file.state == COMMITTED and file.retry_write() and not file.retry_write()
    path.unlink()
    assert InstalledFile(path, KIND).state == COMMITTED


def test_a_file_that_the_disk_does_not_read_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        file = InstalledFile(path, KIND)
        assert file.state == KIND() and not file.retry_write()
        with pytest.raises(PermissionError):
            InstalledFile(path, KIND, repair=False)
    assert on_disk(path) == STAGED


def on_disk(path: Path) -> KIND:
    return read_struct(path, KIND)


def test_a_refused_write_leaves_the_previous_state_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = InstalledFile(path, KIND)
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        file.write(COMMITTED)
    assert file.state == STAGED
    assert file.retry_write(), "the write may have reached the disk"
    assert on_disk(path) == STAGED and not file.retry_write()


def test_a_rollback_is_valid_at_once_and_stored_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = InstalledFile(path, KIND)
    file.write(COMMITTED)
    with full_disk(monkeypatch):
        file.roll_back("asked", "", 1.0)
        assert file.state.running == "a" and on_disk(path) == COMMITTED
        with pytest.raises(OSError, match="No space"):
            file.retry_write()
    assert file.retry_write() and on_disk(path) == file.state
