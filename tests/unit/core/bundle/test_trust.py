"""Trusted metadata of a device: each attack has its own error, and the earlier metadata stays."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, Root, Snapshot, Targets

from bench.support.signed_repository import DAY, ROLES, START, SignedRepository
from firstline_core import errors
from firstline_core.bundle import trust
from firstline_core.bundle.trust import LIMITS_BYTES, Trust
from firstline_core.clock import SimulatedClock


class Device:
    """One device, at a time that the test sets."""

    def __init__(self, folder: Path, repository: SignedRepository) -> None:
        self.now = START
        self.clock = SimulatedClock()
        self.folder = folder
        self.repository = repository
        self.trust = Trust(folder, repository, anchor=repository.anchor, now_s=self._now_s, clock=self.clock)

    def _now_s(self) -> float:
        return self.now.timestamp()

    def versions(self) -> dict[str, int]:
        """The version of each role's metadata after refreshing."""
        return {signed.type: signed.version for signed in self.trust.updater.trusted}

    def refused(self, kind: type[errors.FirstlineError], *words: str) -> None:
        """Refreshing fails with exactly this error, and changes nothing that is believed."""
        before = self.kept()
        with pytest.raises(kind) as caught:
            self.trust.refresh()
        assert type(caught.value) is kind
        for word in words:
            assert word in caught.value.message
        assert self.kept() == before

    def kept(self) -> dict[str, bytes]:
        """The targets that are believed: what the next installation would go by."""
        file = self.folder / "targets.json"
        return {"targets.json": file.read_bytes()} if file.exists() else {}


@pytest.fixture
def repository() -> SignedRepository:
    found = SignedRepository()
    found.add("digits/1/manifest.json", b"one")
    found.publish()
    return found


@pytest.fixture
def device(tmp_path: Path, repository: SignedRepository) -> Device:
    found = Device(tmp_path / "trust", repository)
    found.trust.refresh()
    return found


def test_signed_files_are_listed_including_an_older_bundle(device: Device, repository: SignedRepository) -> None:
    repository.add("digits/2/manifest.json", b"second", bundle="digits")
    repository.publish()
    found = device.trust.refresh()
    assert [(one.path, one.size_bytes) for one in found.values()] == [
        ("digits/1/manifest.json", 3),
        ("digits/2/manifest.json", 6),
    ]
    assert found["digits/2/manifest.json"].custom == {"bundle": "digits"}
    assert device.versions() == {"root": 1, "timestamp": 3, "snapshot": 3, "targets": 3}
    assert set(device.trust.verified_targets().signed.targets) == set(found)
    repository.add("digits/3/manifest.json", b"third", bundle="digits")
    repository.publish()
    assert set(device.trust.verified_targets().signed.targets) == {*found, "digits/3/manifest.json"}


def test_unchanged_metadata_is_neither_fetched_nor_written(device: Device, repository: SignedRepository) -> None:
    repository.asked.clear()
    files = [path for path in device.folder.rglob("*") if path.is_file()]
    before = {path: path.lstat().st_mtime_ns for path in files}
    assert before
    device.trust.refresh()
    assert repository.asked == ["2.root.json", "timestamp.json"]
    assert {path: path.lstat().st_mtime_ns for path in files} == before
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


@pytest.mark.parametrize("name", ["timestamp.json", "3.snapshot.json", "3.targets.json"])
def test_tampered_metadata_is_refused(name: str, device: Device, repository: SignedRepository) -> None:
    repository.publish()
    metadata = json.loads(repository.files[name])
    metadata["signed"]["expires"] = "2099-01-01T00:00:00Z"
    repository.files[name] = json.dumps(metadata).encode()
    device.refused(errors.SignatureError, name)


@pytest.mark.parametrize("role", ROLES)
def test_roots_are_rotated_in_order(role: str, device: Device, repository: SignedRepository) -> None:
    by = list(repository.signers[Root.type])
    for version in (2, 3):
        repository.root.version = version
        new = repository.replace_key(role)
        repository.publish_root(by=[*by, new] if role == Root.type else by)
    repository.publish()
    device.trust.refresh()
    assert device.versions()["root"] == 3
    restarted = Device(device.folder, repository)
    repository.asked.clear()
    restarted.trust.refresh()
    assert repository.asked[0] == "4.root.json"  # those before are kept


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp"])
def test_metadata_signed_with_a_revoked_key_is_refused(role: str, device: Device, repository: SignedRepository) -> None:
    stolen = repository.signers[role][0]
    repository.root.version = 2
    repository.replace_key(role)
    repository.publish_root()
    repository.publish()
    device.trust.refresh()
    repository.signers[role] = [stolen]
    repository.publish()
    device.refused(errors.SignatureError, "keys")


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp"])
def test_a_key_may_be_rotated_during_a_refresh(
    role: str, device: Device, repository: SignedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device has asked for a newer root before it is published."""
    fetch = repository.fetch

    def fetch_before_rotation(name: str) -> Iterator[bytes]:
        if name == "2.root.json" and name not in repository.files:
            repository.root.version = 2
            repository.replace_key(role)
            repository.publish_root()
            repository.publish()
            raise errors.NotFoundError("There was no 2.root.json")
        return fetch(name)

    monkeypatch.setattr(repository, "fetch", fetch_before_rotation)
    device.trust.refresh()
    assert device.versions() == {"root": 2, "timestamp": 3, "snapshot": 3, "targets": 3}


def test_an_older_timestamp_is_refused(device: Device, repository: SignedRepository) -> None:
    older = repository.files["timestamp.json"]
    repository.publish()
    device.trust.refresh()
    repository.files["timestamp.json"] = older
    device.refused(errors.MetadataRollbackError, "timestamp.json", "older")


def test_a_newer_timestamp_of_an_older_snapshot_is_refused(device: Device, repository: SignedRepository) -> None:
    repository.snapshot.version = 1
    repository.timestamp.version += 1
    repository.publish_snapshot()
    device.refused(errors.MetadataRollbackError, "snapshot")


@pytest.mark.parametrize("withdrawn", [False, True])
def test_snapshot_with_old_targets_is_refused(device: Device, repository: SignedRepository, withdrawn: bool) -> None:
    if withdrawn:
        del repository.snapshot.meta["targets.json"]
    else:
        repository.snapshot.meta["targets.json"].version = 1
    repository.snapshot.version += 1
    repository.timestamp.version += 1
    repository.publish_snapshot()
    device.refused(errors.MetadataRollbackError, "snapshot.json", "targets.json")


def test_an_older_root_is_refused(device: Device, repository: SignedRepository) -> None:
    repository.files["2.root.json"] = repository.files["1.root.json"]
    device.refused(errors.MetadataRollbackError, "2.root.json")


def test_a_root_that_skips_a_version_is_refused(device: Device, repository: SignedRepository) -> None:
    repository.root.version = 3
    repository.publish_root()
    repository.files["2.root.json"] = repository.files["3.root.json"]
    device.refused(errors.MetadataMismatchError, "2.root.json")


def test_a_frozen_registry_is_detected_when_its_metadata_expires(device: Device) -> None:
    device.now = START + DAY / 2
    device.trust.refresh()
    device.now = START + 2 * DAY
    device.refused(errors.MetadataExpiredError, "timestamp", "2027-01-02", "held back", "stay in use")


@pytest.mark.parametrize("role", ROLES)
def test_expired_metadata_of_any_role_is_refused(role: str, tmp_path: Path, repository: SignedRepository) -> None:
    signed = {"root": repository.root, "targets": repository.targets, "snapshot": repository.snapshot}.get(
        role, repository.timestamp
    )
    for other in (repository.root, repository.targets, repository.snapshot, repository.timestamp):
        other.expires = START + 900 * DAY
    signed.expires = START + DAY
    repository.publish_root()
    repository.publish()
    device = Device(tmp_path / "new", repository)
    device.trust.refresh()
    device.now = START + 2 * DAY
    device.refused(errors.MetadataExpiredError, role)
    device.now = START  # whatever the wall clock says, the caller's time counts
    device.trust.refresh()


@pytest.mark.parametrize("name", ["targets", "snapshot"])
def test_genuine_metadata_of_another_moment_is_refused(name: str, device: Device, repository: SignedRepository) -> None:
    older = repository.files[f"2.{name}.json"]
    repository.publish()
    repository.files[f"3.{name}.json"] = older
    device.refused(errors.MetadataMismatchError, f"3.{name}.json", "moments")


def test_mixed_metadata_is_detected_without_hashes(device: Device, repository: SignedRepository) -> None:
    repository.publish()
    repository.snapshot.meta["targets.json"].hashes = None
    repository.publish_snapshot()
    repository.files["3.targets.json"] = repository.files["2.targets.json"]
    device.refused(errors.MetadataMismatchError, "3.targets.json")
    repository.publish()
    repository.timestamp.snapshot_meta.hashes = None
    repository.publish_timestamp()
    repository.files["4.snapshot.json"] = repository.files["3.snapshot.json"]
    device.refused(errors.MetadataMismatchError, "4.snapshot.json")


@pytest.mark.parametrize("name", ["2.root.json", "timestamp.json", "3.snapshot.json", "3.targets.json"])
def test_endless_metadata_is_refused_at_its_size_limit(name: str, device: Device, repository: SignedRepository) -> None:
    repository.publish()
    served_bytes = 0

    def endless(file_name: str, content: bytes) -> Iterator[bytes]:
        nonlocal served_bytes
        if file_name != name:
            yield content
            return
        while True:
            served_bytes += 4096
            yield bytes(4096)

    repository.files.setdefault(name, b"")
    repository.parts = endless
    limit = LIMITS_BYTES[name.removesuffix(".json").rpartition(".")[2]]
    device.refused(errors.IntegrityError, name, str(limit))
    assert served_bytes <= limit + 4096


def test_slow_metadata_is_refused_at_its_time_limit(device: Device, repository: SignedRepository) -> None:
    def slow(_name: str, content: bytes) -> Iterator[bytes]:
        for position in range(len(content)):
            device.clock._now_s += 1.0
            yield content[position : position + 1]

    repository.parts = slow
    device.refused(errors.RemoteTimeoutError, "timestamp.json")
    assert device.clock.monotonic_s() < 30


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"signed": {"_type": "targets"}}', b"\xff\xfe", b"9" * 9000])
def test_invalid_metadata_is_refused(content: bytes, device: Device, repository: SignedRepository) -> None:
    repository.files["timestamp.json"] = content
    device.refused(errors.IntegrityError, "timestamp.json")


def test_metadata_of_another_role_is_refused(device: Device, repository: SignedRepository) -> None:
    repository.files["timestamp.json"] = repository.files["2.targets.json"]
    device.refused(errors.IntegrityError, "timestamp.json", "targets")


def test_an_empty_registry_can_be_retried(device: Device, repository: SignedRepository) -> None:
    del repository.files["timestamp.json"]
    device.refused(errors.ProtocolError, "timestamp.json")

    def cut(_name: str, _content: bytes) -> Iterator[bytes]:
        raise errors.LinkDownError("gone")
        yield b""

    repository.files["timestamp.json"] = b""
    repository.parts = cut
    device.refused(errors.LinkDownError)


def test_an_invalid_anchor_is_reported(tmp_path: Path, repository: SignedRepository) -> None:
    found = Trust(tmp_path, repository, anchor=b"{}", now_s=START.timestamp)
    with pytest.raises(errors.IntegrityError, match="root metadata of this device is invalid"):
        found.refresh()
    assert found.updater is None
    with pytest.raises(errors.UpdateError, match="cannot be kept"):
        Trust(tmp_path / "none", repository, anchor=None, now_s=START.timestamp).refresh()


def test_the_anchor_takes_precedence_over_a_stored_root(tmp_path: Path, device: Device) -> None:
    other = SignedRepository()
    stranger = Trust(device.folder, other, anchor=device.repository.anchor, now_s=START.timestamp)
    with pytest.raises(errors.SignatureError):
        stranger.refresh()


def test_damaged_stored_metadata_is_fetched_again(device: Device, repository: SignedRepository) -> None:
    for name in ("timestamp.json", "snapshot.json", "targets.json"):
        (device.folder / name).write_bytes(b"")
    assert list(device.trust.refresh()) == ["digits/1/manifest.json"]


def test_files_are_synced_before_they_replace_others(
    device: Device, repository: SignedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("sync"), fsync(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append(Path(to).name), replace(self, to))[1])
    repository.publish()
    device.trust.refresh()
    assert events == [
        *("sync", "timestamp.json", "sync"),
        *("sync", "snapshot.json", "sync"),
        *("sync", "targets.json", "sync"),
    ]


@pytest.mark.parametrize(("refusal", "kind"), [(errno.ENOSPC, errors.NoRoomError), (errno.EIO, errors.UpdateError)])
def test_a_disk_error_does_not_refuse_metadata(
    device: Device,
    repository: SignedRepository,
    monkeypatch: pytest.MonkeyPatch,
    refusal: int,
    kind: type[errors.UpdateError],
) -> None:
    def refused(_: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    repository.publish()
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(errors.UpdateError) as found:
        device.trust.refresh()
    assert type(found.value) is kind


def test_a_target_without_sha256_is_not_listed(device: Device, repository: SignedRepository) -> None:
    repository.add("other", b"x")
    repository.targets.targets["other"].hashes = {"sha512": "0" * 128}
    repository.publish()
    assert list(device.trust.refresh()) == ["digits/1/manifest.json"]


def test_python_tuf_has_a_reference_time(device: Device) -> None:
    """A version of python-tuf that keeps it elsewhere must not pass unnoticed."""
    updater = trust._DurableUpdater(
        str(device.folder), "", fetcher=trust._Fetcher(device.repository, device.clock), bootstrap=None
    )
    assert isinstance(updater.trusted.reference_time, datetime)
    assert isinstance(updater.trusted.root, Root)
    assert Metadata[Targets].from_file(str(device.folder / "targets.json")).signed.version == 2
    assert Metadata[Snapshot].from_file(str(device.folder / "snapshot.json")).signed.version == 2


def test_a_process_without_updates_does_not_load_python_tuf() -> None:
    packages = "firstline_edge.__main__", "firstline_edge.app", "firstline_edge.fleet.member", "firstline_gateway.app"
    code = "import sys; print([name for name in sys.modules if name.split('.')[0] in ('tuf', 'obstore')])"
    lines = [f"import {package}; {code}" for package in packages]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"] * len(packages)
