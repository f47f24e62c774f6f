"""The broker's folder: what a broker that runs as another user needs of it."""

import base64
import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firstline_core.errors import ConfigError
from firstline_gateway.broker.config import (
    ACCESS_LIST,
    CERTIFICATE,
    CONFIGURATION,
    REVOCATIONS,
    denied_devices,
    password_line,
)
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.identity.authorities import Authorities, open_authorities, parse_lists
from firstline_gateway.identity.credentials import Changes, KnownCredentials
from firstline_gateway.settings.settings import BROKER_USER, BrokerSection, Settings

NOW_S = 1_800_000_000.0
NO_CREDENTIALS = KnownCredentials()


def refreshed(
    path: Path, credentials: KnownCredentials = NO_CREDENTIALS, *, data_directory: str = ""
) -> dict[str, int]:
    authorities: Authorities = open_authorities(path.parent / "identity", NOW_S)
    settings = Settings(broker=BrokerSection(directory=str(path), hosts=("127.0.0.1",), data_directory=data_directory))
    BrokerFolder(settings).refresh(authorities, credentials, NOW_S)
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.iterdir()}


def test_broker_of_the_folders_group_can_use_its_files(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    path.mkdir()
    path.chmod(0o2750)
    modes = refreshed(path)
    assert modes["data"] == 0o2770
    assert modes["broker.key"] == modes["passwords"] == 0o640
    assert modes["gateway_password"] == 0o600, "the broker has no need of it"
    assert (path / "data").stat().st_gid == path.stat().st_gid


def test_the_mode_of_the_data_folder_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    path.mkdir()
    path.chmod(0o2750)
    (path / "data").mkdir(mode=0o750)
    assert refreshed(path)["data"] == 0o2770


def test_files_in_a_private_folder_stay_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        modes = refreshed(tmp_path / "broker")
    finally:
        os.umask(before)
    assert modes["data"] == 0o750
    assert modes["broker.key"] == modes["passwords"] == modes["gateway_password"] == 0o600


def test_a_file_in_place_of_the_data_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    path.mkdir()
    (path / "data").touch()
    with pytest.raises(ConfigError, match=f"broker.directory {path}"):
        refreshed(path)


def test_folders_above_the_data_folder_are_made(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    refreshed(path, data_directory=f"{path}/mosquitto/data")
    assert (path / "mosquitto" / "data").is_dir()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe" * 100])
def test_damaged_files_are_rewritten(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "broker"
    files = refreshed(path).keys() - {"data"}
    for name in files:
        (path / name).write_bytes(damage)
        refreshed(path)
        assert (path / name).read_text(), name
    password, line = (path / "gateway_password").read_text().strip(), (path / "passwords").read_text()
    salt = base64.b64decode(line.split("$")[3])
    assert line == password_line(BROKER_USER, password, salt)


def credentials_of(*devices: tuple[str, str, float | None]) -> KnownCredentials:
    """Credentials with a certificate per device: its name, serial number, and when both were revoked."""
    found = KnownCredentials()
    rows: list[Any] = [
        SimpleNamespace(name=name, device=name, serial=serial, revoked_s=revoked_s, not_after_s=NOW_S + 1)
        for name, serial, revoked_s in devices
    ]
    found.apply(Changes(1, 0.0, rows, rows, []))
    return found


def refused_by(path: Path) -> tuple[set[str], set[str]]:
    authorities = open_authorities(path.parent / "identity", NOW_S)
    lists = parse_lists((path / REVOCATIONS).read_text(), authorities)
    return set(lists.revoked), denied_devices((path / ACCESS_LIST).read_text())


def test_a_store_that_lost_a_revocation_does_not_shorten_the_lists(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    refreshed(path, credentials_of(("a", "1a", NOW_S - 5), ("b", "2b", None)))
    assert refused_by(path) == ({"1a"}, {"a"})
    refreshed(path)  # an empty store
    assert refused_by(path) == ({"1a"}, {"a"})
    refreshed(path, credentials_of(("c", "3c", NOW_S)))
    assert refused_by(path) == ({"1a", "3c"}, {"a", "c"})
    refreshed(path, credentials_of(("a", "4d", None), ("c", "3c", NOW_S)))  # a has enrolled again
    assert refused_by(path) == ({"1a", "3c"}, {"c"})


@pytest.mark.parametrize("blocked", [CONFIGURATION, CERTIFICATE])
def test_an_interrupted_revocation_is_completed_later(tmp_path: Path, blocked: str) -> None:
    path, pid_file = tmp_path / "broker", tmp_path / "pid"
    authorities = open_authorities(tmp_path / "identity", NOW_S)
    folder = BrokerFolder(
        Settings(broker=BrokerSection(directory=str(path), hosts=("127.0.0.1",), pid_file=str(pid_file)))
    )
    folder.refresh(authorities, NO_CREDENTIALS, NOW_S)
    pid_file.write_text(str(os.getpid()))
    (path / blocked).unlink()
    (path / blocked).mkdir()
    revoked = credentials_of(("a", "1a", NOW_S))
    with sighups() as signals:
        with pytest.raises(ConfigError, match=blocked):
            folder.refresh(authorities, revoked, NOW_S)
        (path / blocked).rmdir()
        assert folder.refresh(authorities, revoked, NOW_S) == {"a"}
        assert len(signals) == 1
        assert folder.refresh(authorities, revoked, NOW_S) == set()
        assert len(signals) == 1


def test_a_new_process_makes_the_broker_reload_once(tmp_path: Path) -> None:
    path, pid_file = tmp_path / "broker", tmp_path / "pid"
    settings = Settings(broker=BrokerSection(directory=str(path), hosts=("127.0.0.1",), pid_file=str(pid_file)))
    authorities = open_authorities(tmp_path / "identity", NOW_S)
    BrokerFolder(settings).refresh(authorities, NO_CREDENTIALS, NOW_S)
    pid_file.write_text(str(os.getpid()))
    folder = BrokerFolder(settings)
    with sighups() as signals:
        folder.refresh(authorities, NO_CREDENTIALS, NOW_S)
        assert len(signals) == 1, "the first process may have been killed before its signal"
        folder.refresh(authorities, NO_CREDENTIALS, NOW_S)
        assert len(signals) == 1


def test_the_configuration_appears_when_a_broker_can_start(tmp_path: Path) -> None:
    path = tmp_path / "broker"
    (path / CERTIFICATE).mkdir(parents=True)
    with pytest.raises(ConfigError, match=CERTIFICATE):
        refreshed(path)
    assert not (path / CONFIGURATION).exists()
    (path / CERTIFICATE).rmdir()
    refreshed(path)
    assert (path / CONFIGURATION).exists()


@contextlib.contextmanager
def sighups() -> Iterator[list[int]]:
    """The signals to reload that this process gets meanwhile."""
    got: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: got.append(number))
    try:
        yield got
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_revocation_leaves_the_list_when_no_certificate_can_be_valid(tmp_path: Path) -> None:
    path, long_ago_s = tmp_path / "broker", NOW_S - 2000 * 86_400.0
    refreshed(path, credentials_of(("a", "1a", long_ago_s)))
    refreshed(path, credentials_of(("b", "2b", NOW_S)))
    assert refused_by(path)[0] == {"2b"}
