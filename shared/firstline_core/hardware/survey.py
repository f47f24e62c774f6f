"""What this device is: described from files in milliseconds, measured in some seconds.

    python -m firstline_core.hardware.survey FOLDER [ROOT]      measures, and writes the catalogue as JSON

As a process of its own it can be given little weight, and takes its memory with it when it ends.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from firstline_core.hardware import control_group
from firstline_core.hardware.accelerators import accelerators
from firstline_core.hardware.catalogue import FORMAT, MOST, Accelerator, Catalogue, Memory, Processor, encode
from firstline_core.hardware.cores import processor
from firstline_core.hardware.disk import measured as measured_disk
from firstline_core.hardware.disk import storage
from firstline_core.hardware.network import links
from firstline_core.hardware.power_sources import power_sources, thermal_zones
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.sensors.memory import memory, of_machine
from firstline_core.hardware.tree import Found, Tree
from firstline_core.runtime.priority import use_lowest_priority

_BOARD_CHARACTERS = 120
_PACKAGES = (
    "firstline", "numpy", "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn",
    "onnxruntime-rocm", "ai-edge-litert", "tflite-runtime",
)  # fmt: skip


class _Identity(NamedTuple):
    """What another device, or a changed one, has other than this."""

    board: str
    kernel: str
    processor: Processor
    memory: Found
    accelerators: tuple[Accelerator, ...]


def described(tree: Tree, folder: Path) -> Catalogue:
    """What files say of it, without measuring anything; takes milliseconds.

    Args:
        tree: the kernel's files.
        folder: the agent's state directory.
    """
    identity, limit = _identified(tree), control_group.memory_limit(tree)
    total = identity.memory
    return Catalogue(
        fingerprint=_fingerprint(identity),
        board=identity.board,
        kernel=identity.kernel,
        processor=identity.processor,
        memory=Memory(_bytes(total), int(limit.value) if isinstance(limit, Measured) else None),
        accelerators=identity.accelerators,
        thermal_zones=thermal_zones(tree)[:MOST],
        power_sources=power_sources(tree),
        storage=storage(tree, folder),
        links=links(tree),
        notes=(total.reason[:160],) if isinstance(total, Absent) else (),
    )


def fingerprint(tree: Tree) -> str:
    """Of what measurements depend on: another kernel, package or piece of hardware asks for others.

    It reads what a device is and nothing that it is joined to, such as rails, whose drivers may hang: an agent asks for
    it while it starts.

    Args:
        tree: the kernel's files.
    """
    return _fingerprint(_identified(tree))


def measured(found: Catalogue, tree: Tree, folder: Path, progress: Callable[[str], None] = lambda _: None) -> Catalogue:
    """The same with what takes seconds; what cannot be measured is noted.

    Args:
        found: by `described`.
        tree: the kernel's files.
        folder: where a file may be written to see how fast that is.
        progress: told what is done now.
    """
    from firstline_core.hardware.bandwidth import bandwidth, buffer_bytes
    from firstline_core.hardware.engines import engines

    notes = list(found.notes)
    progress("memory")
    left = memory(tree).available_bytes
    size_bytes = buffer_bytes(found.processor.last_cache_bytes, left.value if isinstance(left, Measured) else 0)
    speed = bandwidth(size_bytes)
    if 2 * speed.buffer_bytes <= (found.processor.last_cache_bytes or 0):
        notes.append("Memory was measured with arrays that fit into the last cache, for little memory is left.")
    progress("disk")
    disk = found.storage
    try:
        disk = measured_disk(disk, folder) if disk is not None else None
    except OSError as error:
        notes.append(f"The state directory's disk was not measured: {error.strerror or error}."[:160])
    return replace(
        found,
        memory=replace(found.memory, bandwidth=speed),
        storage=disk,
        engines=engines(progress),
        notes=tuple(notes),
        measured=True,
    )


def refreshed(kept: Catalogue, now: Catalogue) -> Catalogue:
    """What was measured before, with what files say now: links, free space and sources of power come and go."""
    disk = now.storage
    if disk is not None and kept.storage is not None:
        disk = replace(kept.storage, total_bytes=disk.total_bytes, free_bytes=disk.free_bytes)
    speed = replace(now.memory, bandwidth=kept.memory.bandwidth)
    return replace(now, memory=speed, storage=disk, engines=kept.engines, notes=kept.notes, measured=kept.measured)


def _board(tree: Tree) -> str:
    """The device tree's word; else the firmware's."""
    model = tree.word("proc/device-tree/model", limit=_BOARD_CHARACTERS)
    parts = (tree.word(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return model or " ".join(filter(None, parts))


def _identified(tree: Tree) -> _Identity:
    return _Identity(
        _board(tree), platform.release()[:64], processor(tree), of_machine(tree, "MemTotal"), accelerators(tree)
    )


def _bytes(total: Found) -> int:
    return int(total.value) if isinstance(total, Measured) else 0


def _fingerprint(found: _Identity) -> str:
    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    on = (FORMAT, found.board, found.kernel, found.processor, _bytes(found.memory), found.accelerators)
    content = msgspec.json.encode((*on, platform.python_version(), packages))
    return hashlib.sha256(content).hexdigest()[:32]


def main(arguments: list[str]) -> int:
    """Does what the module's docstring says."""
    use_lowest_priority()
    folder, tree = Path(arguments[0]), Tree(Path(arguments[1]) if len(arguments) > 1 else Path("/"))
    sys.stdout.buffer.write(encode(measured(described(tree, folder), tree, folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
