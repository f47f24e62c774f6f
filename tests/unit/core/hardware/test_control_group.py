"""What a control group lets a process have, in both versions and in containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.boards import board, say

from firstline_core.hardware import control_group
from firstline_core.hardware.readings import Absent, measured
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.tree import Tree

V1 = "virtual-machine-cgroup-v1"
MIB = 1 << 20


def test_version_1_as_a_kernel_told_it(tmp_path: Path) -> None:
    with board(V1, tmp_path) as root:
        tree = Tree(root)
        assert control_group.groups(tree, "cpu") == [
            "sys/fs/cgroup/cpu/system.slice/edge-agent.service",
            "sys/fs/cgroup/cpu/system.slice",
            "sys/fs/cgroup/cpu",
        ]
        assert measured(control_group.memory_limit(tree)) == 512 * MIB
        # As recorded: 300 MiB that a process took, 60 MiB of a file that can be dropped, and what the kernel took.
        assert measured(control_group.memory_left(tree)) == 512 * MIB - (380362752 - 62918656)
        assert measured(control_group.cpu_quota(tree)) == 1.5
        assert measured(control_group.cpu_used_s(tree)) == pytest.approx(1.041310455)

        sensors = Sensors(tree)
        assert measured(sensors.read(1.0).memory_total_bytes) == 512 * MIB
        say(root, "sys/fs/cgroup/cpuacct/system.slice/edge-agent.service/cpuacct.usage", "4041310455")
        found = sensors.read(5.0)
        assert measured(found.cpu_busy_share) == pytest.approx(3 / (4 * 1.5))
        assert measured(found.memory_stalled_share) == 0  # the machine's: version 1 knows of none


def test_the_tightest_of_the_groups_counts(tmp_path: Path) -> None:
    with board(V1, tmp_path) as root:
        say(root, "sys/fs/cgroup/memory/system.slice/memory.limit_in_bytes", str(400 * MIB))
        assert measured(control_group.memory_limit(Tree(root))) == 400 * MIB
        assert measured(control_group.memory_left(Tree(root))) == 400 * MIB - (380375040 - 62918656)


def test_a_container_whose_mount_is_its_group(tmp_path: Path) -> None:
    """Docker with version 1, as on a Jetson: the path is the host's, and is not there."""
    say(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/docker/3f2a\n3:memory:/docker/3f2a\n1:name=systemd:/docker/3f2a")
    say(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(256 * MIB))
    say(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", str(200 * MIB))
    say(tmp_path, "sys/fs/cgroup/memory/memory.stat", f"inactive_file 0\ntotal_inactive_file {8 * MIB}")
    say(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000")
    say(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    say(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "2000000000")
    for name in ("cpu", "cpuacct"):
        (tmp_path / "sys/fs/cgroup" / name).symlink_to("cpu,cpuacct")
    tree = Tree(tmp_path)
    assert measured(control_group.memory_limit(tree)) == 256 * MIB
    assert measured(control_group.memory_left(tree)) == 64 * MIB
    assert measured(control_group.cpu_quota(tree)) == 0.5
    assert measured(control_group.cpu_used_s(tree)) == 2


@pytest.mark.parametrize("unlimited", ["9223372036854771712", "8796093018112"])  # of 64 and of 32 bits
def test_version_1_says_unlimited_with_a_large_number(tmp_path: Path, unlimited: str) -> None:
    say(tmp_path, "proc/self/cgroup", "3:memory:/\n2:cpu:/")
    say(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited)
    say(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000")
    say(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    say(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    tree = Tree(tmp_path)
    for found in (
        control_group.memory_limit(tree),
        control_group.memory_left(tree),
        control_group.cpu_quota(tree),
        control_group.cpu_used_s(tree),
    ):
        assert isinstance(found, Absent) and found.reason.startswith("No control group")


def test_version_2_does_not_look_at_files_of_version_1(tmp_path: Path) -> None:
    with board("virtual-machine", tmp_path) as root:
        say(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "1")
        assert measured(control_group.memory_limit(Tree(root))) == 512 * MIB
