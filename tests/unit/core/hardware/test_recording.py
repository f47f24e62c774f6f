"""A recording of a board gives the same readings, without identifiers."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.boards import BOARDS, board, built, say

from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Snapshot
from firstline_core.hardware.recording import Recording
from firstline_core.hardware.sensors import Sensors
from firstline_core.hardware.survey import describe_device


def said(tree: Tree) -> tuple[Snapshot, Catalogue]:
    """Without the disk, which is this machine's."""
    return Sensors(tree).read(1.0), replace(describe_device(tree, tree.root), storage=None)


def recorded(root: Path, host: str = "") -> str:
    tree = Recording(root, host)
    said(tree)
    return "\n".join(tree.lines())


@pytest.mark.parametrize("name", BOARDS)
def test_a_recorded_board_gives_the_same_readings(tmp_path: Path, name: str) -> None:
    with board(name, tmp_path / "first") as first:
        text, known = recorded(first), said(Tree(first))
    with built(text, name, tmp_path / "second") as second:
        assert said(Tree(second)) == known
        assert recorded(second) == text


def test_identifiers_are_left_out_of_a_recording(tmp_path: Path) -> None:
    uuid, container = "01234567-89ab-cdef-0123-456789abcdef", "ab" * 32
    with board("laptop", tmp_path / "first") as root:
        cpuinfo = (root / "proc/cpuinfo").read_text().rstrip()
        say(root, "proc/cpuinfo", f"{cpuinfo}\nSerial\t\t: 10000000deadbeef")
        say(root, "proc/self/cgroup", f"0::/lxc/kitchen/docker/{container}")
        say(root, "proc/self/mounts", "kitchen:/srv / nfs4 rw 0 0")
        say(root, "sys/fs/cgroup/cgroup.controllers", "memory")
        say(root, f"sys/fs/cgroup/lxc/kitchen/docker/{container}/memory.max", "1000000000")
        say(root, "sys/class/net/enx00c0caabcdef/type", "1")
        say(root, "sys/class/net/enx00c0caabcdee/type", "1")
        say(root, "sys/class/power_supply/hid-00:C0:CA:AB:CD:EF-battery/type", "Battery")
        say(root, "sys/class/power_supply/hid-00:C0:CA:AB:CD:EF-battery/capacity", "7")
        say(root, "dev/nvidia0", "")
        say(root, "proc/driver/nvidia/gpus/0000:01:00.0/information", f"Model: \t RTX A2000\nGPU UUID: \t GPU-{uuid}")
        text, (sensors, catalogue) = recorded(root, "kitchen"), said(Tree(root))
    for private in ("deadbeef", "kitchen", "ab" * 6, "c0caabcd", "C0:CA:AB", "456789abcdef"):
        assert private not in text
    with built(text, "it", tmp_path / "second") as second:
        again, described_again = said(Tree(second))
    assert again.battery_share.value == sensors.battery_share.value == 0.07  # type: ignore[union-attr]
    assert again.memory_total_bytes.value == sensors.memory_total_bytes.value == 1e9  # type: ignore[union-attr]
    assert [link.kind for link in described_again.links] == [link.kind for link in catalogue.links]
    assert [one.name for one in described_again.accelerators] == ["RTX A2000"]
    assert len({link.name for link in described_again.links}) == len(catalogue.links)


def test_an_unreadable_file_is_a_remark(tmp_path: Path) -> None:
    with board("laptop", tmp_path):
        file = tmp_path / "sys/class/power_supply/BAT0/capacity"
        file.unlink()
        file.symlink_to("/proc/self/mem")  # which is unreadable at its beginning
        (remark,) = [line for line in recorded(tmp_path).splitlines() if line.startswith("#")]
    assert remark == "# not read: sys/class/power_supply/BAT0/capacity: the device behind it does not answer."
