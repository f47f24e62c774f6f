"""Describes the hardware of this device: from files in milliseconds, and by trials of engines in seconds."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from msgspec.structs import replace

from firstline_core.hardware import catalogue
from firstline_core.hardware.kernel_files import Tree, memory_limit, online_cores, printable_name, usable_cores
from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors import machine_memory

_TEXT_CHARACTERS = 160
_BOARD_CHARACTERS = 120
_PACKAGES = (
    "firstline", "numpy", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn",
    "onnxruntime-rocm", "ai-edge-litert", "tflite-runtime",
)  # fmt: skip
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)
_MODEL = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
_PART = re.compile(r"^CPU part\s*:\s*(0x[0-9a-f]{3})$", re.MULTILINE)
# Instruction sets that decide how fast floats and 8-bit integers are multiplied, as the kernel names them.
_INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_int8", "amx_bf16", "asimd", "neon", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
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
_ETHERNET = "1"  # ARPHRD_ETHER of linux/if_arp.h
_TRIPS = {"passive": "passive_c", "critical": "critical_c"}


def describe_device(tree: Tree, folder: Path) -> catalogue.Catalogue:
    """Describes the device from files, without measuring; takes milliseconds.

    Args:
        tree: the kernel's files.
        folder: the agent's state directory, whose disk is described.
    """
    return replace(
        _identify(tree),
        thermal_zones=thermal_zones(tree)[: catalogue.MOST],
        power_sources=_power_sources(tree),
        storage=_storage(folder),
        links=_links(tree),
    )


def fingerprint(tree: Tree) -> str:
    """Returns the fingerprint of what measurements depend on: kernel, packages and hardware.

    The agent needs it while it starts, so it reads no files of sensors, whose drivers may hang.
    """
    return _identify(tree).fingerprint


def measure_device(
    described: catalogue.Catalogue,
    progress: Callable[[str], None] = lambda _: None,
    must_end: Callable[[], str] = lambda: "",
) -> catalogue.Catalogue:
    """Returns the catalogue with the engines that work here. Takes seconds.

    Args:
        described: from `describe_device`.
        progress: receives what is tried next.
        must_end: see `run_python`.

    Raises:
        Interrupted: it had to end.
        OSError: the system refuses a process.
    """
    from firstline_core.hardware.engines import engines

    return replace(described, engines=engines(progress, must_end), measured=True)


def with_measurements(described: catalogue.Catalogue, stored: catalogue.Catalogue) -> catalogue.Catalogue:
    """Returns what files say now with the stored engines."""
    return replace(described, engines=stored.engines, measured=stored.measured)


def _identify(tree: Tree) -> catalogue.Catalogue:
    """Returns the catalogue without sensors and engines."""
    board = tree.word("proc/device-tree/model", limit=_BOARD_CHARACTERS)
    firmware = (tree.word(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    found = catalogue.Catalogue(
        fingerprint="",
        board=board or " ".join(filter(None, firmware)),
        kernel=platform.release()[:64],
        processor=_processor(tree),
        memory=catalogue.Memory(0),  # not part of the fingerprint: it differs by some pages after each start
        accelerators=_accelerators(tree),
    )
    hashed = hashlib.sha256(msgspec.json.encode((found, platform.python_version(), _packages())))
    limit = measured(memory_limit(tree))
    total = int(measured(machine_memory(tree, "MemTotal")) or 0)
    memory = catalogue.Memory(total, None if limit is None else int(limit))
    return replace(found, fingerprint=hashed.hexdigest()[:32], memory=memory)


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
        model = " + ".join(f"Arm part {part}" for part in parts)[:64]
    return catalogue.Processor(
        model,
        platform.machine(),
        len(online_cores(tree)),
        usable_cores(tree)[0],
        tuple(dict.fromkeys("neon" if flag == "asimd" else flag for flag in _INSTRUCTION_SETS if flag in flags)),
    )


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
            at_c = measured(tree.number(file.replace("_type", "_temp"), 0.001, low=0, high=200))
            if which is not None and at_c is not None:
                trips[which] = min(at_c, trips.get(which, at_c))
        found.append(catalogue.ThermalZone(tree.word(f"{zone}/type", printable_name(zone.rpartition("/")[2])), **trips))
    return tuple(found)


def _power_sources(tree: Tree) -> tuple[catalogue.PowerSource, ...]:
    """The device's own batteries and adapters, without those of a mouse or headset."""
    folders = [
        folder for folder in tree.names("sys/class/power_supply", "*") if tree.text(f"{folder}/scope") != "Device"
    ]
    return tuple(
        catalogue.PowerSource(printable_name(folder.rpartition("/")[2]), tree.word(f"{folder}/type", "other").lower())
        for folder in folders[: catalogue.MOST]
    )


def _storage(folder: Path) -> catalogue.Storage | None:
    """The disk of a folder; None if the folder is missing, or if its file system reports nonsense."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    if max(usage.total, usage.free) > catalogue.HIGHEST_COUNT:
        return None
    return catalogue.Storage(usage.total, usage.free >> 30 << 30)


def _links(tree: Tree) -> tuple[catalogue.NetworkLink, ...]:
    """The network interfaces with hardware (sysfs-class-net)."""
    folders = [folder for folder in tree.names("sys/class/net", "*") if tree.has(f"{folder}/device")]
    return tuple(
        catalogue.NetworkLink(
            printable_name(folder.rpartition("/")[2]),
            _link_kind(tree, folder),
            tree.text(f"{folder}/operstate") in ("up", "unknown"),
        )
        for folder in folders[: catalogue.MOST]
    )


def _link_kind(tree: Tree, folder: str) -> str:
    if tree.has(f"{folder}/wireless") or tree.has(f"{folder}/phy80211"):
        return "wifi"
    if "DEVTYPE=wwan" in tree.text_lines(f"{folder}/uevent"):
        return "cellular"
    return "ethernet" if tree.text(f"{folder}/type") == _ETHERNET else "other"
