"""The store of installed models: pointers and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstline_core.errors import IntegrityError
from firstline_core.storage.files import with_checksum
from firstline_core.storage.structs import read_struct, write_struct
from firstline_edge.fleet.updates.model_store import Pointer


def test_a_written_pointer_is_read(tmp_path: Path) -> None:
    pointer = Pointer().begin_trial(3).started()
    write_struct(tmp_path / "digits" / "pointer", pointer)
    assert read_struct(tmp_path / "digits" / "pointer", Pointer) == pointer == Pointer("a", "", 2)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}x\n", b"\xff", with_checksum(b'{"slot": "c"}'), with_checksum(b'{"slot": "a", "format": 2}')],
)
def test_a_damaged_pointer_is_detected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pointer").write_bytes(content)
    with pytest.raises(IntegrityError, match="pointer"):
        read_struct(tmp_path / "pointer", Pointer)


def test_a_second_trial_cannot_begin() -> None:
    with pytest.raises(ValueError, match="cannot be tried"):
        Pointer().begin_trial(3).begin_trial(3)


def test_a_rollback_target_must_be_cleared_before_a_trial() -> None:
    pointer = Pointer("b", "a")
    with pytest.raises(ValueError, match="cannot be tried"):
        pointer.begin_trial(3)
    assert pointer.cleared() == Pointer("b", "b")
    assert pointer.cleared().begin_trial(3).reverted() == Pointer("b", "b")


def test_a_start_without_tries_left_ends_the_trial() -> None:
    trial = Pointer("a", "", None).begin_trial(1)
    assert trial.started() == Pointer("b", "a", 0)
    assert trial.started().started() == Pointer("a", "a", None)
