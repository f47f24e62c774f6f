"""The broker's folder: what a broker that runs as another user needs of it."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path, PurePosixPath

import pytest

from firstline_gateway.broker.config import Plan, password_line
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.identity.authorities import Authorities, open_authorities
from firstline_gateway.settings.settings import BROKER_USER

NOW_S = 1_800_000_000.0


def refreshed(path: Path) -> dict[str, int]:
    authorities: Authorities = open_authorities(path.parent / "identity", NOW_S)
    plan = Plan(PurePosixPath(path), PurePosixPath(path) / "data")
    BrokerFolder(path, plan, "firstline/v1", ("127.0.0.1",)).refresh(authorities, [], [], NOW_S)
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.iterdir()}


def test_a_broker_of_the_folders_group_reads_its_secrets_and_writes_its_data(tmp_path: Path) -> None:
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
