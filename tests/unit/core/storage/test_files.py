import contextlib
import errno
import os
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstline_core.errors import IntegrityError
from firstline_core.storage import files


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


LINE = b'{"spent": 12.5, "period": 20500}'


def test_folders_are_private_all_the_way(tmp_path: Path) -> None:
    files.make_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b").chmod(0o755)
    files.make_folder(tmp_path / "a" / "b")
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_over_its_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert files.read_limited(file, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes") as refused:
        files.read_limited(file, 4)
    assert refused.value.errno == errno.EFBIG


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    files.write_whole(file, b"old")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_file_is_given_to_the_folders_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _user: int, _group: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", refuse)  # as root without CAP_CHOWN
    files.write_whole(tmp_path / "own", b"own")
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o600
    with pytest.raises(PermissionError):
        files.write_whole(tmp_path / "shared", b"shared", folder_owners_mode=0o644)
    monkeypatch.setattr(os, "chown", lambda _descriptor, user, group: owners.append((user, group)))
    files.write_whole(tmp_path / "shared", b"shared", folder_owners_mode=0o644)
    owner = tmp_path.stat()
    assert owners == [(owner.st_uid, owner.st_gid)]
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o644


def test_concurrent_writers_leave_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, sync, other, found = tmp_path / "file", os.fsync, b"of the other" * 1000, []

    def meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        sync(descriptor)
        files.write_whole(file, other)
        found.append(file.read_bytes())

    monkeypatch.setattr(os, "fsync", meanwhile)
    files.write_whole(file, b"own")
    assert [*found, file.read_bytes()] == [other, b"own"]
    assert names(tmp_path) == ["file"]


def test_unfinished_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    left = ("fi[l]e.0a1b2c3d.new", "fi[l]e.d3c2b1a0.new", "file.0a1b2c3d.new", "fi[l]e.note.new")
    left += ("fi[x]e.0a1b2c3d.new", "fi[l]e.0a1b2c3d.new~")
    for name in left:
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (1e9, 1e9))
    os.utime(tmp_path / left[1])
    files.write_whole(tmp_path / "fi[l]e", b"whole")
    assert names(tmp_path) == sorted(["fi[l]e", *left[1:]])


@given(st.integers(0, 8 * len(files.with_checksum(LINE)) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_detected_or_harmless(tmp_path: Path, bit: int) -> None:
    content = bytearray(files.with_checksum(LINE))
    content[bit // 8] ^= 1 << bit % 8
    (tmp_path / "file").write_bytes(content)
    with contextlib.suppress(IntegrityError, msgspec.DecodeError):  # without its line break it is no JSON any more
        assert msgspec.json.decode(files.read_checked(tmp_path / "file")) == msgspec.json.decode(LINE)


def test_a_truncation_is_detected_or_harmless(tmp_path: Path) -> None:
    for left in range(len(files.with_checksum(LINE))):
        (tmp_path / "file").write_bytes(files.with_checksum(LINE)[:left])
        with contextlib.suppress(IntegrityError):
            assert files.read_checked(tmp_path / "file") == LINE


def test_a_line_without_its_checksum_is_damage(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(LINE)
    with pytest.raises(IntegrityError):
        files.read_checked(tmp_path / "file")


def test_the_latest_file_set_aside_stays(tmp_path: Path) -> None:
    for content in ("one", "two"):
        (tmp_path / "file").write_text(content)
        assert files.set_aside(tmp_path / "file").read_text() == content
    for name in ("one", "two"):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / name).touch()
        assert [path.name for path in files.set_aside(tmp_path / "folder").iterdir()] == [name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.damaged", "folder.damaged"]


def test_erased_files_are_overwritten_first(tmp_path: Path) -> None:
    """By another name the blocks are still there to be looked at."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "db").write_bytes(b"secret" * 1000)
    (tmp_path / "cache.damaged").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"not ours")
    (tmp_path / "other").write_bytes(b"kept")
    os.link(folder / "db", tmp_path / "witness")
    assert files.erase(folder) == 6006
    assert (tmp_path / "witness").read_bytes() == bytes(6000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "other", "witness"]
    assert (tmp_path / "elsewhere").read_bytes() == b"not ours"
    assert files.erase(tmp_path / "never" / "there") == 0


def test_only_content_between_holes_is_zeroed(tmp_path: Path) -> None:
    sparse, beside = tmp_path / "sparse", tmp_path / "beside"
    with sparse.open("wb") as stream:
        for at in (1 << 20, 3 << 20):
            stream.seek(at)
            stream.write(b"secret")
        stream.truncate(5 << 20)
    before_blocks = sparse.stat().st_blocks
    beside.hardlink_to(sparse)
    assert files.erase(sparse) == 5 << 20
    assert not sparse.exists()
    assert beside.read_bytes() == bytes(5 << 20)
    assert beside.stat().st_blocks <= before_blocks


def test_a_copy_is_private(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"model" * 1000)
    files.copy_whole(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == b"model" * 1000
    assert stat.S_IMODE((tmp_path / "to").stat().st_mode) == 0o600
