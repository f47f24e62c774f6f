"""The catalogue: described from boards' files, measured on this machine, and encoded in bounded JSON."""

import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.boards import BOARDS, board, say

from firstline_core.errors import DeadlineExceededError, IntegrityError
from firstline_core.hardware import survey
from firstline_core.hardware.catalogue import (
    FORMAT,
    Catalogue,
    Engine,
    Memory,
    Storage,
    ThermalZone,
    catalogue_facts,
    catalogue_lines,
    sensor_lines,
)
from firstline_core.hardware.engines import trial, try_engine
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import Absent, Measured, Snapshot
from firstline_core.hardware.sensors import Sensors
from firstline_core.runtime.threads import within
from firstline_core.storage.files import with_checksum
from firstline_core.storage.structs import read_struct


def described(name: str, root: Path) -> Catalogue:
    with board(name, root):
        return survey.describe_device(Tree(root), root)


def test_a_raspberry_pi(tmp_path: Path) -> None:
    found = described("raspberry-pi-4", tmp_path)
    assert found.board == "Raspberry Pi 4 Model B Rev 1.4"
    cpu = found.processor
    assert (cpu.model, cpu.cores, cpu.usable_cores) == ("Arm part 0xd08", 4, 4.0)
    assert cpu.instruction_sets == ("neon",)
    assert found.memory.total_bytes == 3885396 << 10
    assert found.thermal_zones == (ThermalZone("cpu-thermal", None, 110.0),)
    kinds = [(link.name, link.kind, link.up) for link in found.links]
    assert kinds == [("eth0", "ethernet", False), ("wlan0", "wifi", True)]


def test_instruction_sets_of_a_newer_processor(tmp_path: Path) -> None:
    assert described("raspberry-pi-5", tmp_path).processor.instruction_sets == ("neon", "asimdhp", "asimddp")


def test_a_jetson(tmp_path: Path) -> None:
    found = described("jetson-orin-nano", tmp_path)
    assert found.board == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit"
    assert [(one.kind, one.source) for one in found.accelerators] == [("gpu", "/dev/nvgpu/igpu0")]
    assert ThermalZone("cpu-thermal", 99.0, 104.5) in found.thermal_zones
    assert [(link.name, link.kind) for link in found.links] == [("wlP1p1s0", "wifi"), ("wwan0", "cellular")]


def test_a_laptop(tmp_path: Path) -> None:
    found = described("laptop", tmp_path)
    assert found.board == "LENOVO 20XW00"
    assert {"avx2", "avx512_vnni"} <= set(found.processor.instruction_sets)
    kinds = {(one.name, one.kind) for one in found.power_sources}
    assert {("AC", "mains"), ("BAT0", "battery")} <= kinds
    assert "hidpp_battery_0" not in {name for name, _ in kinds}


def test_a_control_group_limits_memory_and_cores(tmp_path: Path) -> None:
    found = described("virtual-machine", tmp_path)
    assert (found.processor.cores, found.processor.usable_cores) == (2, 1.5)
    assert (found.memory.total_bytes, found.memory.limit_bytes) == (24684084 << 10, 512 << 20)
    assert {"amx_int8", "avx512_bf16"} <= set(found.processor.instruction_sets)


@pytest.mark.parametrize(("allowed", "usable"), [("1-2", 2.0), ("3-127", 1.0), ("0-127", 4.0), ("8-9", 4.0), ("", 4.0)])
def test_affinity_limits_the_usable_cores(tmp_path: Path, allowed: str, usable: float) -> None:
    with board("raspberry-pi-5", tmp_path) as root:
        say(root, "proc/self/status", f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{allowed}\n")
        cpu = survey.describe_device(Tree(root), root).processor
    assert (cpu.cores, cpu.usable_cores) == (4, usable)


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_is_encoded_and_described(tmp_path: Path, name: str) -> None:
    found = described(name, tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Catalogue) == found
    assert not found.measured
    assert "--measure" in catalogue_lines(found)[-1]
    empty = tmp_path / "empty"
    for file in [file for file in tmp_path.rglob("*") if file.is_file()]:
        file.write_bytes(b"\xff")
    unreadable = msgspec.json.encode(survey.describe_device(Tree(tmp_path), tmp_path))
    assert isinstance(msgspec.json.decode(unreadable, type=Catalogue), Catalogue)
    assert ("memory", "unknown") in catalogue_facts(survey.describe_device(Tree(empty), empty))


def test_readings_are_shown_in_readable_units() -> None:
    lines = sensor_lines(Snapshot(memory_available_bytes=Measured(22984700000.0, "/proc/meminfo")))
    assert "memory      21.4 GiB left" in lines
    assert any(line.startswith("temperature absent") for line in sensor_lines(Snapshot()))


def test_large_sizes_are_shown_without_an_exponent(tmp_path: Path) -> None:
    found = described("raspberry-pi-4", tmp_path)
    large = replace(found, memory=Memory(2**41), storage=Storage(total_bytes=2**43, free_bytes=2**42))
    assert {("memory", "2,048 GiB"), ("disk", "4,096 of 8,192 GiB free")} <= set(catalogue_facts(large))


def test_the_fingerprint_depends_on_the_board(tmp_path: Path) -> None:
    found = {name: described(name, tmp_path / name).fingerprint for name in BOARDS}
    assert found.pop("virtual-machine-cgroup-v1") == found["virtual-machine"]  # one machine, with other control groups
    assert len(set(found.values())) == len(found)
    assert described(BOARDS[0], tmp_path / "again").fingerprint == found[BOARDS[0]]


def test_memory_size_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    with board("raspberry-pi-5", tmp_path) as root:
        before = survey.describe_device(Tree(root), root)
        say(root, "proc/meminfo", "MemTotal:        8255580 kB\nMemAvailable:    7402112 kB")  # after another start
        after = survey.describe_device(Tree(root), root)
    assert before.memory != after.memory
    assert before.fingerprint == after.fingerprint


def test_measurements_are_kept_and_changing_facts_are_updated(tmp_path: Path) -> None:
    now = described("raspberry-pi-5", tmp_path)
    engines = (Engine("onnx", "CPUExecutionProvider", True, "It ran.", 12.0),)
    measured = replace(now, engines=engines, links=(), measured=True)
    found = survey.with_measurements(now, measured)
    assert (found.engines, found.links, found.measured) == (engines, now.links, True)
    assert found.engine("onnx", "CPUExecutionProvider") is engines[0]
    assert found.engine("tflite", "cpu") is None


def test_unknown_fields_are_ignored_and_newer_formats_refused(tmp_path: Path) -> None:
    found, path = msgspec.to_builtins(described("laptop", tmp_path)), tmp_path / "hardware.json"
    path.write_bytes(with_checksum(msgspec.json.encode(found | {"smell": "burnt"})))
    assert read_struct(path, Catalogue).board == "LENOVO 20XW00"
    path.write_bytes(with_checksum(msgspec.json.encode(found | {"format": FORMAT + 1})))
    with pytest.raises(IntegrityError, match=f"format {FORMAT + 1}"):
        read_struct(path, Catalogue)


def test_the_processor_runs_the_trial_model() -> None:
    found = trial("onnx", "CPUExecutionProvider")
    assert found.works
    assert found.first_run_ms is not None


def test_a_provider_that_falls_back_to_the_processor_does_not_work() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime lists no provider that runs nothing")
    found = trial("onnx", "AzureExecutionProvider")
    assert not found.works
    assert "to the processor" in found.reason


@pytest.mark.tflite
def test_the_interpreter_runs_the_trial_model() -> None:
    assert trial("tflite", "cpu").works


@pytest.mark.tflite
def test_a_delegate_without_its_library_does_not_work() -> None:
    found = try_engine("tflite", "vx")
    assert not found.works
    assert "libvx_delegate.so" in found.reason


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("print('hello')", "no readable result"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_an_engine_that_crashes_does_not_work(code: str, why: str) -> None:
    limit_s = 0.2 if "sleep" in code else 60.0
    found = try_engine("onnx", "BrokenExecutionProvider", limit_s=limit_s, trial=("-c", code))
    assert not found.works
    assert why in found.reason


class Hanging(Tree):
    """A tree in which the driver of one file hangs until the test ends."""

    def __init__(self, root: Path, hangs_at: str) -> None:
        super().__init__(root)
        self.ends = threading.Event()
        self._hangs_at = hangs_at

    def text(self, path: str, limit_bytes: int = 4096) -> str | Absent:
        if path.endswith(self._hangs_at):
            self.reading = path
            self.ends.wait()
        return super().text(path, limit_bytes)


@pytest.mark.parametrize("file", ["hwmon1/in2_input", "energy_uj", "eth0/operstate", "thermal_zone0/type"])
def test_the_fingerprint_does_not_read_parts_that_may_hang(tmp_path: Path, file: str) -> None:
    with board("jetson-orin-nano", tmp_path):
        expected = survey.describe_device(Tree(tmp_path), tmp_path).fingerprint
        assert within(10.0, lambda: survey.fingerprint(Hanging(tmp_path, file))) == expected


def test_a_command_names_the_file_that_hangs(tmp_path: Path) -> None:
    with board("jetson-orin-nano", tmp_path):
        tree = Hanging(tmp_path, "thermal_zone0/temp")
        with pytest.raises(DeadlineExceededError, match="/sys/class/thermal/thermal_zone0/temp was not read"):
            read_in_time(tree, lambda: Sensors(tree).read(1.0), limit_s=0.2)
        tree.ends.set()
        assert read_in_time(tree, lambda: Sensors(tree).read(1.0)).temperature_c
