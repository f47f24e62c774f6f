"""What the kernel shows beside the processor. That it is there says nothing of whether a runtime can use it."""

from __future__ import annotations

from msgspec.structs import replace

from firstline_core.hardware.catalogue import MOST, Accelerator
from firstline_core.hardware.tree import Tree, name_of

# (folder, pattern, kind, name): device nodes and classes as their drivers make them.
_NODES = (
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
_SOURCE_CHARACTERS = 160  # a name of the kernel's has up to 255
# Vendor and product of the Coral USB accelerator, before and after its firmware is loaded (coral.ai, "Get started").
_CORAL_USB = (("1a6e", "089a"), ("18d1", "9302"))


def accelerators(tree: Tree) -> tuple[Accelerator, ...]:
    """Those that are known by their files."""
    found = [
        Accelerator(kind, _named(tree, path, name), f"/{path}")
        for folder, pattern, kind, name in _NODES
        for path in tree.names(folder, pattern)
    ]
    for device in tree.names("sys/bus/usb/devices", "*"):
        if (tree.text(f"{device}/idVendor"), tree.text(f"{device}/idProduct")) in _CORAL_USB:
            found.append(Accelerator("tpu", "Coral Edge TPU (USB)", f"/{device}"))
    return tuple(replace(one, source=one.source[:_SOURCE_CHARACTERS]) for one in found[:MOST])


def _named(tree: Tree, path: str, otherwise: str) -> str:
    """NVIDIA's driver tells its cards' names, in the order of their buses."""
    if not path.startswith("dev/nvidia"):
        return otherwise
    number = int(path.removeprefix("dev/nvidia")) if path.removeprefix("dev/nvidia").isdecimal() else 0
    cards = tree.names("proc/driver/nvidia/gpus", "*")
    told = tree.text(f"{cards[number]}/information") if number < len(cards) else ""
    for line in told.splitlines() if isinstance(told, str) else ():
        key, _, value = line.partition(":")
        if key == "Model":
            return name_of(value)
    return otherwise
