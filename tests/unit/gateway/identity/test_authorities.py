import os
import stat
from pathlib import Path

import pytest

from firstline_gateway.identity import authorities


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_file_that_root_writes_belongs_to_the_owner_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool, mode: int
) -> None:
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda _descriptor, user, group: owners.append((user, group)))
    authorities.write(tmp_path / "file", b"content", private=private)
    owner = tmp_path.stat()
    assert owners == [(owner.st_uid, owner.st_gid)]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
