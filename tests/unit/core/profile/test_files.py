"""Profile files: concurrent writers, unreadable files, and refusing disks."""

import multiprocessing
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.profiles import point, profile

from firstline_core.errors import ConfigError
from firstline_core.profile.files import read_profile, update_profile, with_result
from firstline_core.profile.profile import Profile, RefusedPoint, encode

EACH = 20


def unheard(sentence: str) -> None:
    raise AssertionError(sentence)


def _add(path: Path, threads: int) -> None:
    """Writes points of one number of threads, one by one."""
    for batch in range(1, EACH + 1):
        one = point(1.0, threads=threads)
        measured = replace(one, key=replace(one.key, batch=batch))
        update_profile(path, lambda before, new=measured: with_result(before or profile(), new), unheard)


def test_concurrent_writers_lose_no_point(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    spawning = multiprocessing.get_context("spawn")
    both = [spawning.Process(target=_add, args=(path, threads)) for threads in (1, 2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert len(read_profile(path).points) == 2 * EACH
    assert [one.name for one in tmp_path.iterdir()] == ["p.json"]


def test_a_refusal_keeps_the_earlier_point() -> None:
    before = profile(1.0, 2.0)
    refused = RefusedPoint(before.points[0].key, "There was no memory.")
    found = with_result(before, refused)
    assert (found.points, found.refused) == (before.points, (refused,))
    anew = point(3.0)
    found = with_result(found, anew)
    assert (set(found.points), found.refused) == ({anew, before.points[1]}, ())


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 99}', b"\xff"])
def test_an_unreadable_profile_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path, warnings = tmp_path / "p.json", list[str]()
    path.write_bytes(content)
    update_profile(path, lambda before: before or profile(1.0), warnings.append)
    assert (tmp_path / "p.json.damaged").read_bytes() == content
    assert read_profile(path) == profile(1.0)
    assert len(warnings) == 1 and "is set aside as p.json.damaged" in warnings[0]


def test_a_refusing_disk_gives_a_helpful_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b"{")

    def refuse(_from: Path, _to: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(ConfigError, match=r"cannot be written: Permission denied"):
        update_profile(path, lambda before: profile(1.0), unheard)
    assert [one.name for one in tmp_path.iterdir()] == ["p.json"]


def test_an_empty_profile_is_not_written(tmp_path: Path) -> None:
    update_profile(tmp_path / "p.json", lambda before: profile(), unheard)
    assert list(tmp_path.iterdir()) == []


def test_an_unchanged_profile_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(encode(profile(1.0)))
    before = path.stat()

    def same(found: Profile | None) -> Profile:
        assert found is not None
        return found

    update_profile(path, same, unheard)
    assert path.stat().st_ino == before.st_ino
