"""Empty, malformed and unreadable files of drivers give a reason, never an exception."""

import os
from pathlib import Path

import pytest
from support.boards import board, say

from firstline_core.hardware.kernel_files import Tree, control_groups, cpu_quota, cpu_used_s, memory_left, memory_limit
from firstline_core.hardware.readings import Absent, Measured, Modelled, measured
from firstline_core.hardware.sensors import Sensors
from firstline_core.units import MIB


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def reason(found: object) -> str:
    assert isinstance(found, Absent)
    return found.reason


def test_a_number_is_in_the_wanted_unit(tree: Tree) -> None:
    (tree.root / "temp").write_text("  48312\n")
    assert tree.number("temp", 0.001) == Measured(48.312, "/temp")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"N/A\n", "'N/A', which is no whole number"),
        (b"1_000\n", "no whole number"),
        (b"12 34\n", "no whole number"),
        (b"9" * 30, "no whole number"),
        (b"1e3\n", "no whole number"),
        ("٣\n".encode(), "no whole number"),
        (b"\xff\xfe", "holds no text"),
        (b"201000\n", "says 201000, which cannot be"),
    ],
)
def test_a_malformed_number_is_absent_with_a_reason(tree: Tree, content: bytes, why: str) -> None:
    (tree.root / "temp").write_bytes(content)
    assert why in reason(tree.number("temp", 0.001, high=200))


def test_a_missing_file_is_named(tree: Tree) -> None:
    assert reason(tree.text("sys/absent")) == "/sys/absent: no such file or directory."


def test_a_driver_without_a_value_is_absent(tree: Tree) -> None:
    os.mkfifo(tree.root / "curr1_input")
    descriptor = os.open(tree.root / "curr1_input", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert "switched off" in reason(tree.text("curr1_input"))
    finally:
        os.close(descriptor)


def test_a_device_that_does_not_answer_is_absent(tree: Tree) -> None:
    (tree.root / "temp").symlink_to("/proc/self/mem")  # nothing is at address 0
    assert reason(tree.text("temp")) == "/temp: the device behind it does not answer."


def test_a_file_of_the_superuser_is_absent(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # tests may run as the superuser, whom nothing refuses
    assert "docs/concepts/hardware.md" in reason(tree.text("energy_uj"))


def test_an_invalid_path_is_absent(tree: Tree) -> None:
    assert isinstance(tree.text("a\0b"), Absent)
    assert tree.names("a\0b", "*") == []
    assert not tree.has("a\0b")


def test_reading_is_bounded(tree: Tree) -> None:
    (tree.root / "long").write_text("x" * 10_000)
    assert len(str(tree.text("long"))) == 4096


def test_names_are_printable(tree: Tree) -> None:
    (tree.root / "type").write_text("Wärme\x1b[31m" + "y" * 100)
    assert tree.word("type") == "W?rme?[31m" + "y" * 38
    assert tree.word("absent", "zone0") == "zone0"
    (tree.root / "model").write_bytes(b"Raspberry Pi 5\0")
    assert tree.word("model") == "Raspberry Pi 5"


def test_names_are_sorted_by_their_numbers(tree: Tree) -> None:
    for name in ("thermal_zone10", "thermal_zone2", "cooling_device0", "thermal_zone0"):
        (tree.root / name).mkdir()
    assert tree.names(".", "thermal_zone*") == ["./thermal_zone0", "./thermal_zone2", "./thermal_zone10"]


@pytest.mark.parametrize("kind", [Measured, Modelled])
def test_a_reading_is_finite(kind: type[Measured] | type[Modelled]) -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            kind(value, "/temp")


V1 = "virtual-machine-cgroup-v1"


def test_version_1_is_read_as_a_kernel_wrote_it(tmp_path: Path) -> None:
    with board(V1, tmp_path) as root:
        tree = Tree(root)
        assert control_groups(tree, "cpu") == [
            "sys/fs/cgroup/cpu/system.slice/edge-agent.service",
            "sys/fs/cgroup/cpu/system.slice",
            "sys/fs/cgroup/cpu",
        ]
        assert measured(memory_limit(tree)) == 512 * MIB
        # As recorded: 300 MiB that a process took, 60 MiB of a file that can be dropped, and what the kernel took.
        assert measured(memory_left(tree)) == 512 * MIB - (380362752 - 62918656)
        assert measured(cpu_quota(tree)) == 1.5
        assert measured(cpu_used_s(tree)) == pytest.approx(1.041310455)

        sensors = Sensors(tree)
        assert measured(sensors.read(1.0).memory_total_bytes) == 512 * MIB
        say(root, "sys/fs/cgroup/cpuacct/system.slice/edge-agent.service/cpuacct.usage", "4041310455")
        found = sensors.read(5.0)
        assert measured(found.cpu_busy_share) == pytest.approx(3 / (4 * 1.5))
        assert measured(found.memory_stalled_share) == 0  # the machine's: version 1 knows of none


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    with board(V1, tmp_path) as root:
        say(root, "sys/fs/cgroup/memory/system.slice/memory.limit_in_bytes", str(400 * MIB))
        assert measured(memory_limit(Tree(root))) == 400 * MIB
        assert measured(memory_left(Tree(root))) == 400 * MIB - (380375040 - 62918656)


def test_a_container_mount_may_be_the_group(tmp_path: Path) -> None:
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
    assert measured(memory_limit(tree)) == 256 * MIB
    assert measured(memory_left(tree)) == 64 * MIB
    assert measured(cpu_quota(tree)) == 0.5
    assert measured(cpu_used_s(tree)) == 2


@pytest.mark.parametrize("unlimited", ["9223372036854771712", "8796093018112"])  # of 64 and of 32 bits
def test_version_1_means_unlimited_by_a_large_number(tmp_path: Path, unlimited: str) -> None:
    say(tmp_path, "proc/self/cgroup", "3:memory:/\n2:cpu:/")
    say(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited)
    say(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000")
    say(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    say(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    tree = Tree(tmp_path)
    for found in (memory_limit(tree), memory_left(tree), cpu_quota(tree), cpu_used_s(tree)):
        assert isinstance(found, Absent) and found.reason.startswith("No control group")


def test_version_2_ignores_files_of_version_1(tmp_path: Path) -> None:
    with board("virtual-machine", tmp_path) as root:
        say(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "1")
        assert measured(memory_limit(Tree(root))) == 512 * MIB
