"""Any content of a board's files gives readings or reasons, and a catalogue that can be decoded."""

import re
from pathlib import Path

import msgspec
import pytest
from support.boards import board

from firstline_core.hardware.catalogue import LIMIT_BYTES, Catalogue
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Snapshot
from firstline_core.hardware.sensors import Sensors
from firstline_core.hardware.survey import describe_device

NONSENSE = ("9" * 5000, "9" * 19, "9" * 9 + "G", "-1", "nan", "", "\x00\x01", "\udcff\udcfe")


def check(root: Path) -> None:
    sensors = Sensors(Tree(root))
    for now_s in (1.0, 2.0):
        snapshot = sensors.read(now_s)
        assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
    catalogue = describe_device(Tree(root), root)
    content = msgspec.json.encode(catalogue)
    assert len(content) <= LIMIT_BYTES
    assert msgspec.json.decode(content, type=Catalogue) == catalogue


@pytest.mark.parametrize("name", ["laptop", "jetson-orin-nano", "virtual-machine-cgroup-v1"])
def test_a_nonsensical_file_affects_only_its_own_reading(tmp_path: Path, name: str) -> None:
    """Replaces each file of each board by nonsense, and each number in it."""
    with board(name, tmp_path):
        for file in [path for path in tmp_path.rglob("*") if path.is_file()]:
            content = file.read_text()
            with_wrong_numbers = {re.sub("[0-9]+", nonsense, content.strip()) for nonsense in NONSENSE}
            for wrong in {*NONSENSE, *with_wrong_numbers} - {content.strip()}:
                file.write_text(wrong, errors="surrogateescape")
                try:
                    check(tmp_path)
                except Exception as error:
                    raise AssertionError(f"{file.relative_to(tmp_path)} says {wrong[:80]!a}") from error
            file.unlink()
            file.mkdir()  # reading it is an error of the kernel's
            check(tmp_path)
            file.rmdir()
            file.write_text(content)


@pytest.mark.parametrize("folder", ["sys/class/net", "sys/class/thermal", "sys/class/power_supply", "dev"])
def test_many_parts_and_long_names_fit_into_the_catalogue(tmp_path: Path, folder: str) -> None:
    kinds = {"sys/class/thermal": "thermal_zone", "dev": "hailo0"}
    with board("laptop", tmp_path):
        for number in range(100):
            path = tmp_path / folder / f"{kinds.get(folder, 'x')}{number}{'n' * 200}"
            path.mkdir(parents=True, exist_ok=True)
            for name in ("type", "device", "operstate"):
                (path / name).write_text("\x1b" * 100)
        check(tmp_path)
