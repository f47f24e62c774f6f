"""Cores, instruction sets and caches, and what of them this process may use (sysfs-devices-system-cpu)."""

from __future__ import annotations

import os
import platform
import re

from firstline_core.hardware import control_group
from firstline_core.hardware.catalogue import Processor
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.sensors.frequency import frequencies
from firstline_core.hardware.tree import Tree, name_of

_CPUINFO_BYTES = 1 << 20
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.*)$", re.MULTILINE)
_MODEL = re.compile(r"^model name\s*:\s*(.*)$", re.MULTILINE)
_PART = re.compile(r"^CPU part\s*:\s*(0x[0-9a-f]{3})$", re.MULTILINE)
# Arm's part numbers (implementer 0x41) of boards that are common at the edge, as `lscpu` names them.
_PARTS = {
    "0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse-N1", "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE", "0xd46": "Cortex-A510", "0xd47": "Cortex-A710", "0xd80": "Cortex-A520",
}  # fmt: skip
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_SIZE = re.compile(r"([0-9]{1,9})([KMG]?)")
_LARGEST_CACHE_BYTES = 1 << 36
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Those that decide how fast floats, and integers of 8 bits, are multiplied; the kernel's names to the field's.
_INSTRUCTION_SETS = {
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "neon": "neon",
    "asimdhp": "asimdhp",
    "asimddp": "asimddp",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}


def processor(tree: Tree) -> Processor:
    """What the kernel says of it."""
    told = tree.text("proc/cpuinfo", _CPUINFO_BYTES)
    cpuinfo = told if isinstance(told, str) else ""
    flags = set(matched[1].split()) if (matched := _FLAGS.search(cpuinfo)) is not None else set()
    model = name_of(matched[1]) if (matched := _MODEL.search(cpuinfo)) is not None else _parts(cpuinfo)
    cores = _online(tree)
    rated = [reading.value for reading in frequencies(tree).rated_hz.values() if isinstance(reading, Measured)]
    return Processor(
        model,
        platform.machine(),
        cores,
        usable_cores(tree)[0],
        tuple(dict.fromkeys(name for flag, name in _INSTRUCTION_SETS.items() if flag in flags)),
        max(rated, default=None),
        _last_cache_bytes(tree),
    )


def usable_cores(tree: Tree) -> tuple[float, bool]:
    """Cores that this process may use, as a fraction, and whether it is a group's quota that says so."""
    cores, quota = _online(tree), control_group.cpu_quota(tree)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") and str(tree.root) == "/" else cores
    own = float(allowed or cores)
    return (quota.value, True) if isinstance(quota, Measured) and quota.value < own else (own, False)


def _parts(cpuinfo: str) -> str:
    """Arm's processors say no name, but a number for each core; big and little ones differ."""
    return " + ".join(_PARTS.get(part, f"Arm part {part}") for part in dict.fromkeys(_PART.findall(cpuinfo)))[:64]


def _online(tree: Tree) -> int:
    told = tree.text("sys/devices/system/cpu/online")
    parts = told.split(",") if isinstance(told, str) else []
    spans = [matched for part in parts if (matched := _RANGE.fullmatch(part.strip())) is not None]
    counted = sum(int(span[2] or span[1]) - int(span[1]) + 1 for span in spans)
    return counted if 0 < counted <= 1 << 16 else os.cpu_count() or 1


def _last_cache_bytes(tree: Tree) -> int | None:
    found: list[tuple[int, int]] = []
    for cache in tree.names("sys/devices/system/cpu/cpu0/cache", "index*"):
        level, size = tree.number(f"{cache}/level", low=1, high=9), tree.text(f"{cache}/size")
        matched = None if isinstance(size, Absent) else _SIZE.fullmatch(size)
        if isinstance(level, Measured) and matched is not None:
            found.append((int(level.value), int(matched[1]) * _UNITS[matched[2]]))
    found = [(level, size_bytes) for level, size_bytes in found if size_bytes <= _LARGEST_CACHE_BYTES]
    return max(found)[1] if found else None
