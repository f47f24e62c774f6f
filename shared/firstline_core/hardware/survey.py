"""Describes the hardware of this device: from files in milliseconds, and by trials of engines in seconds.

    python -m firstline_core.hardware.survey FOLDER [ROOT]      measures, and writes the catalogue as JSON

A separate process can be given a low priority and releases its memory when it ends.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from firstline_core.hardware import catalogue
from firstline_core.hardware.kernel_files import (
    FileReading,
    Tree,
    cpu_quota,
    memory_limit,
    printable_name,
)
from firstline_core.hardware.power import rails_w
from firstline_core.hardware.readings import Absent, Measured, measured
from firstline_core.hardware.sensors import frequencies, machine_memory
from firstline_core.runtime.priority import use_lowest_priority
from firstline_core.storage.structs import FORMAT

_TEXT_CHARACTERS = 160
_BOARD_CHARACTERS = 120
_PACKAGES = (
    "firstline", "numpy", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn",
    "onnxruntime-rocm", "ai-edge-litert", "tflite-runtime",
)  # fmt: skip
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)
_MODEL = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
_PART = re.compile(r"^CPU part\s*:\s*(0x[0-9a-f]{3})$", re.MULTILINE)
# Arm's part numbers (implementer 0x41) of common edge boards, as `lscpu` names them.
_PARTS = {
    "0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse-N1", "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE", "0xd46": "Cortex-A510", "0xd47": "Cortex-A710", "0xd80": "Cortex-A520",
}  # fmt: skip
# Instruction sets that decide how fast floats and 8-bit integers are multiplied, as the kernel names them.
_INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_int8", "amx_bf16", "asimd", "neon", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_SIZE = re.compile(r"([0-9]{1,9})([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST_CACHE_BYTES = 1 << 36
# (folder, pattern, kind, name): device nodes and classes of accelerators' drivers.
_ACCELERATORS = (
    ("dev", "nvidia[0-9]*", "gpu", "NVIDIA GPU"),
    ("dev/nvgpu", "igpu[0-9]*", "gpu", "NVIDIA Tegra GPU"),
    ("dev", "nvhost-nvdla[0-9]*", "npu", "NVIDIA DLA"),
    ("dev", "kfd", "gpu", "AMD GPU"),
    ("dev", "mali[0-9]*", "gpu", "Arm Mali GPU"),
    ("dev", "hailo[0-9]*", "npu", "Hailo"),
    ("dev", "ethosu[0-9]*", "npu", "Arm Ethos-U"),
    ("dev", "galcore", "npu", "VeriSilicon"),
    ("sys/class/apex", "apex_[0-9]*", "tpu", "Coral Edge TPU"),
    ("sys/class/accel", "accel[0-9]*", "npu", "compute accelerator"),
)
# Vendor and product of the Coral USB accelerator, before and after its firmware is loaded (coral.ai, "Get started").
_CORAL_USB = (("1a6e", "089a"), ("18d1", "9302"))
_SUPPLY_KINDS = {"Battery": "battery", "Mains": "mains", "USB": "usb", "UPS": "battery", "Wireless": "usb"}
_TRIPS = {"passive": "passive_c", "critical": "critical_c"}
_LOOPBACK, _ETHERNET = "772", "1"  # ARPHRD_LOOPBACK and ARPHRD_ETHER of linux/if_arp.h


class _Identity(NamedTuple):
    """Identifies a device and its configuration."""

    board: str
    kernel: str
    processor: catalogue.Processor
    memory: FileReading
    accelerators: tuple[catalogue.Accelerator, ...]


def describe_device(tree: Tree, folder: Path) -> catalogue.Catalogue:
    """Describes the device from files, without measuring; takes milliseconds.

    Args:
        tree: the kernel's files.
        folder: the agent's state directory.
    """
    identity, limit = _identify(tree), memory_limit(tree)
    total = identity.memory
    return catalogue.Catalogue(
        fingerprint=_fingerprint(identity),
        board=identity.board,
        kernel=identity.kernel,
        processor=identity.processor,
        memory=catalogue.Memory(int(measured(total) or 0), int(limit.value) if isinstance(limit, Measured) else None),
        accelerators=identity.accelerators,
        thermal_zones=thermal_zones(tree)[: catalogue.MOST],
        power_sources=_power_sources(tree),
        storage=storage(tree, folder),
        links=_links(tree),
        notes=(total.reason[:_TEXT_CHARACTERS],) if isinstance(total, Absent) else (),
    )


def fingerprint(tree: Tree) -> str:
    """Returns the fingerprint of what measurements depend on: kernel, packages and hardware.

    The agent needs it while it starts, so it reads no files of rails or other parts whose drivers may hang.

    Args:
        tree: the kernel's files.
    """
    return _fingerprint(_identify(tree))


def measure_device(
    described: catalogue.Catalogue, progress: Callable[[str], None] = lambda _: None
) -> catalogue.Catalogue:
    """Returns the catalogue with the engines that work here. Takes seconds.

    Args:
        described: from `describe_device`.
        progress: receives what is tried next.
    """
    from firstline_core.hardware.engines import engines

    return replace(described, engines=engines(progress), measured=True)


def with_measurements(described: catalogue.Catalogue, stored: catalogue.Catalogue) -> catalogue.Catalogue:
    """Returns what files say now with the stored engines: links, free space and power sources change."""
    return replace(described, engines=stored.engines, notes=stored.notes, measured=stored.measured)


def _identify(tree: Tree) -> _Identity:
    board = tree.word("proc/device-tree/model", limit=_BOARD_CHARACTERS)
    firmware = (tree.word(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return _Identity(
        board or " ".join(filter(None, firmware)),
        platform.release()[:64],
        _processor(tree),
        machine_memory(tree, "MemTotal"),
        _accelerators(tree),
    )


def _fingerprint(identity: _Identity) -> str:
    memory_bytes = int(measured(identity.memory) or 0)
    parts = (FORMAT, identity.board, identity.kernel, identity.processor, memory_bytes, identity.accelerators)
    content = msgspec.json.encode((*parts, platform.python_version(), _packages()))
    return hashlib.sha256(content).hexdigest()[:32]


@cache
def _packages() -> list[str]:
    """The installed packages that measurements depend on, with their versions."""
    found = []
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return found


def _processor(tree: Tree) -> catalogue.Processor:
    cpuinfo = "\n".join(tree.text_lines("proc/cpuinfo", 1 << 20))
    flags = set(matched[1].split()) if (matched := _FLAGS.search(cpuinfo)) is not None else set()
    if (matched := _MODEL.search(cpuinfo)) is not None:
        model = printable_name(matched[1])
    else:  # Arm processors have a part number for each core; big and little ones differ
        parts = dict.fromkeys(_PART.findall(cpuinfo))
        model = " + ".join(_PARTS.get(part, f"Arm part {part}") for part in parts)[:64]
    rated = [hertz for reading in frequencies(tree).rated_hz.values() if (hertz := measured(reading)) is not None]
    return catalogue.Processor(
        model,
        platform.machine(),
        _online_cores(tree),
        usable_cores(tree)[0],
        tuple(dict.fromkeys("neon" if flag == "asimd" else flag for flag in _INSTRUCTION_SETS if flag in flags)),
        max(rated, default=None),
        _last_cache_bytes(tree),
    )


def usable_cores(tree: Tree) -> tuple[float, bool]:
    """Returns the cores that this process may use, as a fraction, and whether a control group's quota limits them."""
    cores, quota = _online_cores(tree), cpu_quota(tree)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") and str(tree.root) == "/" else cores
    own = float(allowed or cores)
    return (quota.value, True) if isinstance(quota, Measured) and quota.value < own else (own, False)


def _online_cores(tree: Tree) -> int:
    parts = tree.word("sys/devices/system/cpu/online", limit=4096).split(",")
    spans = [matched for part in parts if (matched := _RANGE.fullmatch(part.strip())) is not None]
    cores = sum(int(span[2] or span[1]) - int(span[1]) + 1 for span in spans)
    return cores if 0 < cores <= 1 << 16 else os.cpu_count() or 1


def _last_cache_bytes(tree: Tree) -> int | None:
    found: list[tuple[float, int]] = []
    for folder in tree.names("sys/devices/system/cpu/cpu0/cache", "index*"):
        level, matched = tree.value(f"{folder}/level", low=1, high=9), _SIZE.fullmatch(tree.word(f"{folder}/size"))
        if level is not None and matched is not None:
            found.append((level, int(matched[1]) * _UNITS[matched[2]]))
    return max(((level, size) for level, size in found if size <= _LARGEST_CACHE_BYTES), default=(0, None))[1]


def _accelerators(tree: Tree) -> tuple[catalogue.Accelerator, ...]:
    """Accelerators that the kernel shows; whether a runtime can use one is found out by a trial."""
    found = [
        catalogue.Accelerator(kind, _nvidia_model(tree, path) or name, f"/{path}")
        for folder, pattern, kind, name in _ACCELERATORS
        for path in tree.names(folder, pattern)
    ]
    for device in tree.names("sys/bus/usb/devices", "*"):
        if (tree.text(f"{device}/idVendor"), tree.text(f"{device}/idProduct")) in _CORAL_USB:
            found.append(catalogue.Accelerator("tpu", "Coral Edge TPU (USB)", f"/{device}"))
    return tuple(replace(one, source=one.source[:_TEXT_CHARACTERS]) for one in found[: catalogue.MOST])


def _nvidia_model(tree: Tree, path: str) -> str:
    """The model of an NVIDIA card, whose driver lists the cards in the order of their buses; "" for others."""
    if not path.startswith("dev/nvidia"):
        return ""
    digits, cards = path.removeprefix("dev/nvidia"), tree.names("proc/driver/nvidia/gpus", "*")
    number = int(digits) if digits.isdecimal() else 0
    lines = tree.text_lines(f"{cards[number]}/information") if number < len(cards) else []
    return next((printable_name(line.partition(":")[2]) for line in lines if line.startswith("Model:")), "")


def thermal_zones(tree: Tree) -> tuple[catalogue.ThermalZone, ...]:
    """Returns all zones with the temperatures at which the kernel throttles, and switches off."""
    found = []
    for zone in tree.names("sys/class/thermal", "thermal_zone*"):
        trips: dict[str, float] = {}
        for file in tree.names(zone, "trip_point_*_type"):
            which = _TRIPS.get(tree.word(file))
            at_c = tree.value(file.replace("_type", "_temp"), 0.001, low=0, high=200)
            if which is not None and at_c is not None:
                trips[which] = min(at_c, trips.get(which, at_c))
        found.append(catalogue.ThermalZone(tree.word(f"{zone}/type", printable_name(zone.rpartition("/")[2])), **trips))
    return tuple(found)


def _power_sources(tree: Tree) -> tuple[catalogue.PowerSource, ...]:
    found = []
    for folder in tree.names("sys/class/power_supply", "*"):
        if tree.text(f"{folder}/scope") != "Device":
            kind = _SUPPLY_KINDS.get(tree.word(f"{folder}/type"), "other")
            measures = tree.has(f"{folder}/power_now") or tree.has(f"{folder}/current_now")
            found.append(catalogue.PowerSource(printable_name(folder.rpartition("/")[2]), kind, measures))
    found += [
        catalogue.PowerSource(name, "rail", isinstance(reading, Measured)) for name, reading in rails_w(tree).items()
    ]
    for folder in tree.names("sys/class/powercap", "intel-rapl:*"):
        readable = tree.value(f"{folder}/energy_uj", low=0) is not None
        found.append(catalogue.PowerSource(tree.word(f"{folder}/name", "rapl"), "rapl", readable))
    return tuple(found[: catalogue.MOST])


def storage(tree: Tree, folder: Path) -> catalogue.Storage | None:
    """Returns space and file system of a folder's disk; None if the folder is missing.

    Args:
        tree: the kernel's files.
        folder: the agent's state directory.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    if max(usage.total, usage.free) > catalogue.HIGHEST_COUNT:
        return None  # a file system in user space may report anything
    longest, file_system = -1, ""
    for line in tree.text_lines("proc/self/mounts", 1 << 20):
        fields = line.split(" ")
        if len(fields) > 2 and folder.resolve().is_relative_to(fields[1]) and len(fields[1]) >= longest:
            longest, file_system = len(fields[1]), printable_name(fields[2])
    return catalogue.Storage(usage.total, usage.free, file_system)


def _links(tree: Tree) -> tuple[catalogue.NetworkLink, ...]:
    """All network interfaces (sysfs-class-net), those with hardware first."""
    found = [_link(tree, folder) for folder in tree.names("sys/class/net", "*")]
    return tuple(sorted(found, key=lambda link: link.kind in ("virtual", "loopback"))[: catalogue.MOST])


def _link(tree: Tree, folder: str) -> catalogue.NetworkLink:
    kind = _link_kind(tree, folder)
    state = tree.text(f"{folder}/operstate")
    bits_per_s = tree.value(f"{folder}/speed", 1e6, low=1, high=1e13)  # -1 if unknown
    up = state == "up" or (state == "unknown" and kind in ("loopback", "cellular"))
    return catalogue.NetworkLink(printable_name(folder.rpartition("/")[2]), kind, up, bits_per_s)


def _link_kind(tree: Tree, folder: str) -> catalogue.LinkKind:
    if tree.text(f"{folder}/type") == _LOOPBACK:
        return "loopback"
    if tree.has(f"{folder}/wireless") or tree.has(f"{folder}/phy80211"):
        return "wifi"
    if "DEVTYPE=wwan" in tree.text_lines(f"{folder}/uevent"):
        return "cellular"
    if not tree.has(f"{folder}/device"):
        return "virtual"
    return "ethernet" if tree.text(f"{folder}/type") == _ETHERNET else "other"


def main(arguments: list[str]) -> int:
    """Runs the command in the module's docstring."""
    use_lowest_priority()
    folder, tree = Path(arguments[0]), Tree(Path(arguments[1]) if len(arguments) > 1 else Path("/"))
    sys.stdout.buffer.write(catalogue.encode(measure_device(describe_device(tree, folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
